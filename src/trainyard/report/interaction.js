"use strict";

/* How a chart was written, and what shows a step of it, for each chart on the page. */
const charts = new WeakMap();

/* The values under the pointer, or moved to with the arrow keys. */
function followValues(figure) {
  const written = figure.outerHTML;
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector(":scope > svg");
  const crosshair = svg.querySelector(".crosshair");
  const dots = svg.querySelectorAll(".focus");
  const readout = figure.querySelector(".readout");
  const [firstStep, lastStep] = chart.steps;
  const [lowest, highest] = chart.values;
  const allSteps = [...new Set(chart.series.flatMap((series) => series.steps))].sort((a, b) => a - b);
  let shown = null;

  const xOf = (step) => chart.left + ((step - firstStep) / (lastStep - firstStep)) * (chart.right - chart.left);
  const yOf = (value) => chart.bottom - ((value - lowest) / (highest - lowest)) * (chart.bottom - chart.top);

  function nearest(steps, step) {
    let low = 0;
    let high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low > 0 && step - steps[low - 1] <= steps[low] - step ? low - 1 : low;
  }

  function inDigits(value) {
    if (value === null) return "not finite";
    if (chart.share) return (value * 100).toFixed(2) + " %";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(3);
    return value.toLocaleString("en", { maximumSignificantDigits: 5 });
  }

  function show(step) {
    shown = step;
    readout.replaceChildren(`${chart.axis} ${step.toLocaleString("en")}`);
    chart.series.forEach((series, index) => {
      const at = nearest(series.steps, step);
      const value = series.values[at];
      const dot = dots[index];
      dot.toggleAttribute("hidden", value === null);
      if (value !== null) {
        dot.setAttribute("cx", xOf(series.steps[at]));
        dot.setAttribute("cy", yOf(value));
      }
      const line = document.createElement("div");
      const figureText = document.createElement("b");
      figureText.textContent = inDigits(value);
      figureText.className = series.style;
      line.append(`${series.label} `, figureText);
      if (series.steps[at] !== step) line.append(` (${chart.axis} ${series.steps[at].toLocaleString("en")})`);
      readout.append(line);
    });
    crosshair.setAttribute("d", `M${xOf(step)},${chart.top}V${chart.bottom}`);
    readout.hidden = false;
    const box = svg.getBoundingClientRect();
    const outer = figure.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const x = box.left - outer.left + xOf(step) * scale;
    const isRightHalf = x > outer.width / 2;
    const left = isRightHalf ? x - readout.offsetWidth - 12 : x + 12;
    readout.style.left = `${Math.max(4, Math.min(left, outer.width - readout.offsetWidth - 4))}px`;
    readout.style.top = `${box.top - outer.top + chart.top * scale + 4}px`;
  }

  function hide() {
    shown = null;
    readout.hidden = true;
    crosshair.setAttribute("d", "");
    dots.forEach((dot) => dot.toggleAttribute("hidden", true));
  }

  function follow(event) {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const step = firstStep + ((x - chart.left) / (chart.right - chart.left)) * (lastStep - firstStep);
    show(allSteps[nearest(allSteps, step)]);
  }

  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    const index = shown === null ? (move > 0 ? -1 : allSteps.length) : nearest(allSteps, shown);
    show(allSteps[Math.max(0, Math.min(allSteps.length - 1, index + move))]);
  });
  charts.set(figure, { written, show, shown: () => shown });
}

/* Make a part of the page respond, when it is written or replaced. */
function enliven(part) {
  for (const figure of part.matches("figure.chart") ? [part] : part.querySelectorAll("figure.chart")) followValues(figure);
  /* What ended a process is the last of its lines. */
  for (const lines of part.querySelectorAll(".failure pre")) lines.scrollTop = lines.scrollHeight;
}
enliven(document.body);

/* Large graphs are zoomed, or fitted into their frame. */
function zoom(graph, factor) {
  graph.style.setProperty("--zoom", factor);
  graph.querySelector(".zoom input").value = factor;
}
document.addEventListener("input", ({ target }) => { if (target.closest(".zoom")) zoom(target.closest(".graph"), target.value); });
document.addEventListener("click", ({ target }) => {
  const graph = target.matches(".zoom button") && target.closest(".graph");
  const drawn = graph && graph.querySelector("svg").viewBox.baseVal;
  if (graph) zoom(graph, Math.min(1, graph.clientWidth / drawn.width, (graph.clientHeight - 60) / drawn.height));
});

/* A link to a job opens what is written of it. */
function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();

/* Paper cannot be unfolded. */
let folded = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    folded.push(details);
  }
});
addEventListener("afterprint", () => {
  folded.forEach((details) => { details.open = false; });
  folded = [];
});
