// Lists of the API: page by page, or all rows, sorted, selected and exported.

import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { get } from "./api.js";
import { number } from "./format.js";
import { Empty, Fault, Table, attempt, html, notify, save, sorted, useEvery } from "./ui.js";

// Requests for one page of a list whose filter meets few rows.
const REQUESTS_MAX = 5;
const ROWS = 50;
// Rows of a request for all, and of all together: to count and sort them, and for a file.
const PORTION = 1000;
const COUNTED_MAX = 10_000;
const EXPORTED_MAX = 100_000;

// All rows, so many at most: { rows, isWhole }. `isOver` says that nobody waits for them any more.
async function fetchAll(path, params, max, isOver = () => false) {
  let [rows, cursor] = [[], null];
  do {
    const page = await get(path, { ...params, limit: PORTION, cursor });
    rows = rows.concat(page.items);
    cursor = page.cursor;
  } while (cursor && rows.length < max && !isOver());
  return { rows: rows.slice(0, max), isWhole: !cursor && rows.length <= max };
}

// A page of a list. Cursors of earlier pages are kept, so that one can go back.
function usePages(path, params) {
  const key = path + JSON.stringify(params);
  const [view, setView] = useState({ key: null, cursors: [null], rows: [] });
  const asked = useRef(0);
  const load = async (cursors) => {
    const turn = ++asked.current;
    setView((old) => ({ ...old, key, loading: true, rows: old.key === key ? old.rows : [] }));
    let [rows, cursor] = [[], cursors.at(-1)];
    try {
      // A page may be short although there are more.
      for (let count = 0; count < REQUESTS_MAX && rows.length < ROWS; count += 1) {
        const limit = ROWS - rows.length;
        const page = await get(path, { ...params, limit, cursor });
        if (turn !== asked.current) return;
        rows = rows.concat(page.items);
        cursor = page.cursor;
        if (!cursor) break;
      }
      setView({ key, cursors, rows, next: cursor, loading: false });
    } catch (problem) {
      if (turn === asked.current) {
        setView((old) => ({ ...old, key, cursors, problem, loading: false }));
      }
    }
  };
  useEffect(() => {
    load([null]);
    return () => { asked.current += 1; };
  }, [key]);
  return { ...view, load, isFresh: view.key === key };
}

// All rows of a list that has more than one page, on demand: how many there are, and what is sorted.
function useWhole(path, params, isWanted, version) {
  const key = path + JSON.stringify(params);
  const [all, setAll] = useState({ key: null });
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    let isOver = false;
    if (isWanted) {
      fetchAll(path, params, COUNTED_MAX, () => isOver)
        .then((found) => isOver || setAll({ key, ...found }), () => {});
    }
    return () => { isOver = true; };
  }, [key, isWanted, version, asked]);
  return [all.key === key ? all : null, () => setAsked((count) => count + 1)];
}

// `actions`: { label, danger, ask(rows), run(row), done }; they make rows selectable. Sorting goes over
// all rows, up to COUNTED_MAX. `known`: the number of rows, if it is known without counting.
export function List({ path, params = {}, columns, label, empty, keyOf, kind, known, version = 0, every, actions = [] }) {
  const { cursors, rows: paged, next, problem, loading, load, isFresh } = usePages(path, params);
  const [order, setOrder] = useState(null);
  const [chosen, setChosen] = useState(new Map());
  const [at, setAt] = useState(0);
  const [isCounted, setCounted] = useState(false);
  const isOnePage = cursors.length === 1 && !next;
  const [all, loadAll] = useWhole(path, params, isFresh && !loading && !isOnePage && (isCounted || !!order), version);
  const isSorted = order && (isOnePage || all);
  const isLarge = all && all.rows.length > PORTION;
  const again = () => {
    load(cursors);
    if (order && !isOnePage) loadAll();
  };
  useEffect(() => { if (version) again(); }, [version]);
  useEffect(() => {
    setAt(0);
    setChosen(new Map());
    setCounted(false);
  }, [path + JSON.stringify(params)]);
  useEvery(every || 3600_000, () => every && !loading && !(order && isLarge) && again(), [every, cursors, loading, order, isLarge]);
  const ordered = isSorted ? sorted(isOnePage ? paged : all.rows, order, columns) : paged;
  const isCut = isSorted && !isOnePage;
  const shown = !isFresh ? [] : isCut ? ordered.slice(at, at + ROWS) : ordered;
  const first = isCut ? at : (cursors.length - 1) * ROWS;
  const least = (cursors.length - 1) * ROWS + paged.length;
  const total = !isFresh || loading && !paged.length ? null : isOnePage ? paged.length : known ?? all?.rows.length ?? least;
  // Not all of them have been counted.
  const isLeast = !isOnePage && known == null && (all ? !all.isWhole : !!next);
  const turn = (step) => (isCut ? setAt(at + step * ROWS) : load(step < 0 ? cursors.slice(0, -1) : [...cursors, next]));
  const hasMore = isCut ? at + ROWS < ordered.length : !!next;
  const select = actions.length > 0 && keyOf && { chosen, setChosen };
  return html`
    <${Fault} problem=${problem} />
    ${select && chosen.size > 0 && html`<${Selection} ...${{ chosen, setChosen, actions, again }} />`}
    <div class=${loading ? "list busy" : "list"} aria-busy=${loading}>
      ${isFresh && paged.length === 0 && !loading && !problem && !next && cursors.length === 1
        ? html`<${Empty}>${empty || "There is none."}<//>`
        : html`<${Table} columns=${columns} rows=${shown} label=${label} keyOf=${keyOf} kind=${kind} order=${order}
            onOrder=${(next) => { setOrder(next); setAt(0); }} select=${select} />`}
    </div>
    ${(shown.length > 0 || cursors.length > 1 || next) && html`
      <nav class="pager" aria-label=${`${label}: pages`}>
        ${(first > 0 || hasMore) && html`
          <button disabled=${first === 0 || loading} onClick=${() => turn(-1)}>Previous</button>
          <span class="dim">${shown.length ? `${number(first + 1)} to ${number(first + shown.length)}` : "no row in this part"}</span>
          <button disabled=${!hasMore || loading} onClick=${() => turn(1)}>Next</button>`}
        ${total != null && html`<span class="dim">${isLeast ? "more than " : ""}${number(total)} ${total === 1 ? "row" : "rows"}${
          isCut && !all.isWhole ? `; the first ${number(all.rows.length)} are sorted` : ""}</span>`}
        ${isLeast && !all && html`<button class="small" onClick=${() => setCounted(true)}>Count</button>`}
        <${Export} ...${{ path, params, label }} />
      </nav>`}`;
}

// What is done with the rows that are selected, one after the other.
function Selection({ chosen, setChosen, actions, again }) {
  const [busy, setBusy] = useState(false);
  const rows = [...chosen.values()];
  const carryOut = async (action) => {
    const values = await action.ask(rows);
    if (!values) return;
    setBusy(true);
    let [done, fault] = [0, null];
    for (const row of rows) {
      try {
        await action.run(row, values);
        done += 1;
      } catch (problem) {
        fault ??= problem;
      }
    }
    setBusy(false);
    setChosen(new Map());
    notify(`${action.done}: ${number(done)} of ${number(rows.length)}.`, fault);
    again();
  };
  return html`
    <div class="selection" role="group" aria-label="Selected rows">
      <span>${number(rows.length)} selected</span>
      ${actions.map((action) => html`
        <button class=${action.danger ? "small danger" : "small"} disabled=${busy} onClick=${() => carryOut(action)}>${action.label}</button>`)}
      <button class="small plain" onClick=${() => setChosen(new Map())}>Clear</button>
    </div>`;
}

const FORMATS = {
  JSON: ["application/json", (rows) => `${JSON.stringify(rows, null, 2)}\n`],
  CSV: ["text/csv", csv],
};

// A file of all rows that meet the filters.
function Export({ path, params, label }) {
  const [busy, setBusy] = useState(false);
  const write = async (format) => {
    setBusy(true);
    await attempt(async () => {
      const { rows, isWhole } = await fetchAll(path, params, EXPORTED_MAX);
      const [type, text] = FORMATS[format];
      const name = label.toLowerCase().replace(/\W+/g, "-");
      save(new Blob([text(rows)], { type }), `${name}.${format.toLowerCase()}`);
      if (!isWhole) notify(`The file has the first ${number(EXPORTED_MAX)} rows.`);
    });
    setBusy(false);
  };
  return html`
    <span class="export">Export ${Object.keys(FORMATS).map((format) => html`
      <button class="small" disabled=${busy} aria-label=${`Export as ${format}`} onClick=${() => write(format)}>${format}</button>`)}</span>`;
}

// RFC 4180. A name that a table program would take for a formula begins with an apostrophe.
export function csv(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  const cell = (value) => {
    if (value == null) return "";
    let text = typeof value === "object" ? JSON.stringify(value) : String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\s\u0085]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [names.map(cell), ...rows.map((row) => names.map((name) => cell(row[name])))];
  return lines.map((line) => `${line.join(",")}\r\n`).join("");
}
