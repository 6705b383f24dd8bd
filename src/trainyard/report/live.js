
/* The live page: the server names what has changed, and what differs from the page as written now is replaced. */
{
  const WHOLE = "label, button, figure, svg, pre, table, dl, p, ul, h1, h2, h3, summary";
  const MOST_CHARACTERS = 200_000;
  const texts = new Map();
  const source = new EventSource("events");
  let ended = false;
  let ahead = 0; // of this browser's clock, in milliseconds: that of the machine which runs
  let waiting = false;
  let busy = false;

  const asWritten = (node) => charts.get(node)?.written ?? node.outerHTML;

  function keyed(parent) {
    const counts = {};
    return new Map([...parent.children].map((child) => {
      const kind = `${child.tagName}.${child.classList[0] ?? ""}`;
      counts[kind] = (counts[kind] ?? 0) + 1;
      return [child.id || `${kind}.${counts[kind]}`, child];
    }));
  }

  function place(focused) {
    if (focused.dataset.job) return `[data-job="${CSS.escape(focused.dataset.job)}"]`;
    return focused.getAttribute("href") ? `[href="${CSS.escape(focused.getAttribute("href"))}"]` : null;
  }

  function replace(old, fresh) {
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const step = charts.get(old)?.shown() ?? null;
    old.replaceWith(fresh);
    enliven(fresh);
    if (focused) (old === focused ? fresh : place(focused) ? fresh.querySelector(place(focused)) : fresh.querySelector(":scope > svg"))?.focus({ preventScroll: true });
    if (step !== null) charts.get(fresh)?.show(step);
  }

  function update(old, fresh) {
    if (old.dataset.log) return;
    if (old.tagName !== fresh.tagName || old.matches(WHOLE)) {
      if (asWritten(old) !== fresh.outerHTML) replace(old, document.importNode(fresh, true));
      return;
    }
    if (old.className !== fresh.className) old.className = fresh.className;
    if (!fresh.children.length) {
      if (old.outerHTML !== fresh.outerHTML) replace(old, document.importNode(fresh, true));
      return;
    }
    const before = keyed(old);
    let at = old.firstElementChild;
    for (const [key, child] of keyed(fresh)) {
      const match = before.get(key);
      before.delete(key);
      if (match) {
        at = match.nextElementSibling;
        update(match, child);
      } else {
        const added = document.importNode(child, true);
        old.insertBefore(added, at);
        enliven(added);
      }
    }
    before.forEach((gone) => gone.remove());
  }

  function show(page) {
    const fresh = new DOMParser().parseFromString(page, "text/html");
    document.title = fresh.title;
    update(document.querySelector("main"), fresh.querySelector("main"));
    count();
    for (const path of texts.keys()) write(path);
    document.dispatchEvent(new Event("shown"));
  }

  async function refresh() {
    if (busy) { waiting = true; return; }
    busy = true;
    try {
      const answer = await fetch("./");
      const page = await answer.text();
      if (!ended) show(page);
    } catch {
      if (!ended) say("The connection to the server was lost; this is how the run was then.");
    }
    busy = false;
    if (waiting) { waiting = false; refresh(); }
  }

  function write(path) {
    const lines = document.querySelector(`pre[data-log="${CSS.escape(path)}"]`);
    if (!lines || lines.textContent === texts.get(path)) return;
    const isAtEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
    lines.textContent = texts.get(path);
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  }

  /* As quantities.duration writes it, in whole seconds. */
  function inWords(seconds) {
    const two = (number) => String(number).padStart(2, "0");
    if (seconds < 60) return `${seconds} s`;
    const minutes = Math.floor(seconds / 60);
    return minutes < 60 ? `${minutes} min ${two(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  }

  /* A limit of what is shown of running jobs, as the server sets it. */
  function limit(name) {
    return Number(document.getElementById("now")?.dataset[name]);
  }

  function count() {
    for (const time of document.querySelectorAll("time.since")) {
      const seconds = Math.max(0, Math.floor((Date.now() + ahead - Date.parse(time.dateTime)) / 1000));
      time.textContent = inWords(seconds);
      if (time.classList.contains("said")) time.classList.toggle("long", seconds >= limit("longSilenceSeconds"));
    }
  }

  function hear(path, text) {
    const row = document.querySelector(`tr[data-logs~="${CSS.escape(path)}"]`);
    if (!row) return;
    row.querySelector("time.said")?.setAttribute("datetime", new Date(Date.now() + ahead).toISOString());
    const line = text.trimEnd().split("\n").at(-1);
    const said = row.nextElementSibling?.matches(".said") ? row.nextElementSibling : null;
    if (said && line) said.firstElementChild.textContent = line.slice(0, limit("lineCharacters"));
    count();
  }

  function say(text) {
    const notice = document.querySelector(".notice.live");
    if (notice) notice.textContent = text;
  }

  const counting = setInterval(count, 1000);
  count();
  source.addEventListener("clock", (event) => {
    ahead = Number(event.data) - Date.now();
    count();
  });
  source.addEventListener("page", refresh);
  source.addEventListener("log", (event) => {
    const { log, text } = JSON.parse(event.data);
    if (texts.has(log)) hear(log, text);
    texts.set(log, ((texts.get(log) ?? "") + text).slice(-MOST_CHARACTERS));
    write(log);
  });
  source.addEventListener("ended", (event) => {
    source.close();
    clearInterval(counting);
    ended = true;
    const { text, page } = JSON.parse(event.data);
    show(page);
    say(text);
  });
  source.addEventListener("error", () => {
    if (source.readyState !== EventSource.CLOSED) source.close();
    clearInterval(counting);
    say("The connection to the server was lost; this is how the run was then.");
  });
}
