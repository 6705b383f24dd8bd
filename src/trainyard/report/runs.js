
/* The index of runs: filters, the chosen metric as a column that sorts, and which runs are compared. What was chosen is
   kept for as long as the tab is open: the way back from a run leads to the same rows. */
{
  const FILTERS = ["search", "pipeline", "status", "metric"];
  const MOST_COMPARED = 6;
  const field = (id) => document.getElementById(id);
  const kept = { lowestFirst: false, ...JSON.parse(sessionStorage.getItem(location.pathname)) };
  const ticked = new Set(kept.ticked);

  function apply() {
    for (const id of FILTERS) {
      field(id).value = kept[id] ?? "";
      if (field(id).selectedIndex === -1) field(id).value = "";
    }
    const [search, pipeline, status, metric] = FILTERS.map((id) => field(id).value);
    // Of `epochs=6`, as `--set` takes it, the whole value counts; any other word may be a part.
    const words = search.toLowerCase().split(/\s+/).map((word) => (word.includes("=") ? ` ${word.replace(/^inputs\./, "")} ` : word));
    const rows = [...document.querySelectorAll(".runs tbody tr")];
    const boxes = new Map(rows.map((row) => [row.querySelector("input").value, row.querySelector("input")]));
    const valueOf = new Map(rows.map((row) => [row, JSON.parse(row.dataset.metrics)[metric] ?? null]));
    for (const name of ticked) if (!boxes.has(name)) ticked.delete(name);
    for (const [name, box] of boxes) box.checked = ticked.has(name);
    for (const row of rows) {
      const fits = (!pipeline || row.dataset.pipeline === pipeline) && (!status || row.dataset.status === status);
      row.hidden = !(fits && words.every((word) => row.dataset.words.includes(word)) && (!metric || valueOf.get(row) !== null));
      row.querySelector(".metric").textContent = valueOf.get(row)?.toLocaleString("en", { maximumSignificantDigits: 4 }) ?? "–";
    }
    const rank = (row) => metric ? valueOf.get(row) * (kept.lowestFirst ? 1 : -1) : Number(row.dataset.place);
    rows.sort((a, b) => rank(a) - rank(b)).forEach((row) => row.parentNode.append(row));
    for (const cell of document.querySelectorAll(".metric")) cell.hidden = !metric;
    field("order").textContent = `${metric} ${kept.lowestFirst ? "▲" : "▼"}`;
    field("order").title = kept.lowestFirst ? "the lowest first" : "the highest first";

    const shown = rows.filter((row) => !row.hidden).length;
    const found = shown ? `${shown} of ${rows.length} runs` : `none of ${rows.length} runs: change the search or a filter`;
    const advice = ticked.size === 1 ? "; tick another run to compare" : ticked.size > MOST_COMPARED ? `; at most ${MOST_COMPARED} are compared` : "";
    field("found").textContent = rows.length ? found + advice : "";
    field("compare").disabled = ticked.size < 2 || ticked.size > MOST_COMPARED;
    field("compare").textContent = ticked.size > 1 ? `Compare ${ticked.size} runs` : "Compare";
  }

  function keep() {
    sessionStorage.setItem(location.pathname, JSON.stringify({ ...kept, ticked: [...ticked] }));
    apply();
  }

  document.addEventListener("input", ({ target }) => {
    if (target.name === "run") ticked[target.checked ? "add" : "delete"](target.value);
    else kept[target.id] = target.value;
    keep();
  });
  document.addEventListener("click", ({ target }) => {
    if (target.id !== "order") return;
    kept.lowestFirst = !kept.lowestFirst;
    keep();
  });
  document.addEventListener("shown", apply);
  apply();
}
