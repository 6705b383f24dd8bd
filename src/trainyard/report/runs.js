
/* The index of runs: filters, the chosen metric as a column that sorts, and which runs are compared. */
{
  const chosen = (id) => document.getElementById(id).value;
  const ticked = new Set();
  const MOST_COMPARED = 6;

  function apply() {
    const words = chosen("search").toLowerCase().split(/\s+/);
    const metric = chosen("metric");
    const rows = [...document.querySelectorAll(".runs tbody tr")];
    const valueOf = new Map(rows.map((row) => [row, JSON.parse(row.dataset.metrics)[metric] ?? null]));
    for (const row of rows) {
      const fits = ["pipeline", "status"].every((id) => !chosen(id) || row.dataset[id] === chosen(id));
      row.hidden = !(fits && words.every((word) => row.dataset.words.includes(word)) && (!metric || valueOf.get(row) !== null));
      row.querySelector(".metric").textContent = valueOf.get(row)?.toLocaleString("en", { maximumSignificantDigits: 4 }) ?? "–";
      row.querySelector("input").checked = ticked.has(row.querySelector("input").value);
    }
    if (metric) rows.sort((a, b) => valueOf.get(b) - valueOf.get(a)).forEach((row) => row.parentNode.append(row));
    for (const cell of document.querySelectorAll(".metric")) cell.hidden = !metric;
    document.querySelector("thead .metric").textContent = metric;
    document.getElementById("compare").disabled = ticked.size < 2 || ticked.size > MOST_COMPARED;
  }

  document.addEventListener("input", ({ target }) => {
    if (target.name === "run") ticked[target.checked ? "add" : "delete"](target.value);
    apply();
  });
  document.addEventListener("shown", apply);
  apply();
}
