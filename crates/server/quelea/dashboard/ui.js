// Parts that all pages are made of.

import { h } from "./vendor/preact.js";
import { useCallback, useEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { get, state, onChange } from "./api.js";
import { SHOWN_BYTES_MAX, bytes, dateTime, payload, pretty, relative } from "./format.js";

export const html = htm.bind(h);

// Draws again when the session, the routes or the connection change.
export function useApiState() {
  const [, draw] = useState(0);
  useEffect(() => onChange(() => draw((count) => count + 1)), []);
  return state;
}

// Calls `act` every `ms` while the page is visible, and when it becomes visible.
export function useEvery(ms, act, keys = []) {
  useEffect(() => {
    const tick = () => document.hidden || act();
    const timer = setInterval(tick, ms);
    document.addEventListener("visibilitychange", tick);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", tick);
    };
  }, [ms, ...keys]);
}

// An answer of the API: { data, problem, loading, reload }. `path` null: nothing is asked.
export function useGet(path, params, every) {
  const key = path + JSON.stringify(params ?? null);
  const [answer, setAnswer] = useState({ key: null });
  const asked = useRef(0);
  const waiting = useRef(0);
  const load = useCallback(async () => {
    if (!path) return;
    const turn = ++asked.current;
    waiting.current = turn;
    try {
      const data = await get(path, params);
      if (turn === asked.current) setAnswer({ key, data });
    } catch (problem) {
      // What was shown stays while the broker is away: the banner says so.
      if (turn === asked.current) {
        setAnswer((old) => ({ key, problem, data: problem.status ? undefined : old.data }));
      }
    }
    if (waiting.current === turn) waiting.current = 0;
  }, [key]);
  useEffect(() => {
    load();
    return () => { asked.current += 1; };
  }, [load]);
  // A slow broker is not asked again before it has answered.
  useEvery(every || 3600_000, () => every && !waiting.current && load(), [load, every]);
  const isFresh = answer.key === key;
  return {
    data: isFresh ? answer.data : undefined,
    problem: isFresh ? answer.problem : undefined,
    loading: !isFresh,
    reload: load,
  };
}

export function Page({ title, note, actions, children }) {
  useEffect(() => { document.title = `${title} · quelea`; }, [title]);
  return html`
    <header class="page-head">
      <h1>${title}</h1>
      ${note && html`<p class="dim">${note}</p>`}
      <div class="actions">${actions}</div>
    </header>
    ${children}`;
}

export function Section({ title, note, actions, children }) {
  return html`
    <section>
      ${title && html`<header class="section-head"><h2>${title}</h2>
        ${note && html`<span class="dim">${note}</span>`}<div class="actions">${actions}</div></header>`}
      ${children}
    </section>`;
}

export function Fault({ problem }) {
  if (!problem) return null;
  // The banner shows that the broker is away.
  if (problem.status === 0) return null;
  return html`
    <div class="fault" role="alert">
      <strong>${problem.detail}</strong>
      ${problem.place && html`<div>In ${problem.place}.</div>`}
      ${problem.fix && html`<div class="fix">${problem.fix}</div>`}
    </div>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Badge = ({ kind = "plain", children }) =>
  html`<span class=${`badge ${kind}`}>${children}</span>`;

export const Online = ({ is }) =>
  html`<span class=${is ? "dot on" : "dot"} role="img" aria-label=${is ? "connected" : "offline"}
    title=${is ? "connected" : "offline"}></span>`;

// Gives a file to the browser's downloads.
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

// The begin of a payload of `size` bytes. `load` gives all of them, for a download.
export function Payload({ data, size = data.length, load, name = "payload" }) {
  const shown = payload(data, size);
  const isWhole = shown.shown === size;
  return html`
    <pre tabindex="0" aria-label="Payload">${isWhole && shown.kind === "text" ? pretty(shown.text) : shown.text}</pre>
    ${(!isWhole || size > SHOWN_BYTES_MAX) && html`<p class="cut"><span class="dim">The first ${bytes(shown.shown)} of ${bytes(size)}.</span>
      ${load && html`<button class="small" onClick=${() => attempt(async () => save(new Blob([await load()]), name))}>Download</button>`}</p>`}`;
}

// A time in milliseconds since 1970.
export const When = ({ ms }) => (ms == null ? "–" : html`
  <time datetime=${new Date(ms).toISOString()} title=${dateTime(ms)}>${relative(ms)}</time>`);

// Names and values in two columns.
export function Facts({ rows }) {
  return html`<dl class="facts">
    ${rows.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}
  </dl>`;
}

// Rows in the order { title, isDown } of a column: by its `sort(row)`, a number or a text. Rows without a
// value are last.
export function sorted(rows, order, columns) {
  const value = columns.find(({ title }) => title === order?.title)?.sort;
  if (!value) return rows;
  const sign = order.isDown ? -1 : 1;
  const keyed = rows.map((row) => [value(row), row]);
  keyed.sort(([one], [other]) => {
    if (one == null || other == null) return (one == null) - (other == null);
    if (typeof one === "number" && typeof other === "number") return sign * (one - other);
    return sign * COLLATOR.compare(String(one), String(other));
  });
  return keyed.map(([, row]) => row);
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

// The same column again turns the order round, and the third time ends it.
function nextOrder(order, title) {
  if (order?.title !== title) return { title, isDown: false };
  return order.isDown ? null : { title, isDown: true };
}

function Head({ column, order, setOrder }) {
  const mine = order?.title === column.title ? order : null;
  const shown = !column.sort ? column.title : html`
    <button class="plain" onClick=${() => setOrder(nextOrder(order, column.title))}>${column.title}${mine ? (mine.isDown ? " \u2193" : " \u2191") : ""}</button>`;
  return html`<th scope="col" class=${column.num ? "num" : ""}
    aria-sort=${mine && (mine.isDown ? "descending" : "ascending")}>${shown}</th>`;
}

// `columns`: { title, cell(row), sort(row), num, wide }; wide "rest": it gets the space that is left. The
// box scrolls sideways on narrow screens. `kind` "fixed": tables below each other have the same columns;
// "text": the column "rest" is below the others on narrow screens. `order`: whoever has the rows sorts
// them. `select`: { chosen, setChosen }, a map of rows by their keys.
export function Table({ columns, rows, label, keyOf, kind = "", order, onOrder, select }) {
  const [own, setOwn] = useState(null);
  const shown = onOrder ? rows : sorted(rows, own, columns);
  const head = { order: onOrder ? order : own, setOrder: onOrder ?? setOwn };
  const mark = (some, is) => {
    const next = new Map(select.chosen);
    for (const row of some) {
      if (is) next.set(keyOf(row), row);
      else next.delete(keyOf(row));
    }
    select.setChosen(next);
  };
  const box = (some, name) => html`<input type="checkbox" aria-label=${name} checked=${some.length > 0 && some.every((row) => select.chosen.has(keyOf(row)))}
    onChange=${(event) => mark(some, event.target.checked)} />`;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${label}>
      <table class=${kind}>
        <thead><tr>${select && html`<th class="pick">${box(rows, "Select all rows of this page")}</th>`}${columns.map((column) => html`
          <${Head} column=${column} ...${head} />`)}</tr></thead>
        <tbody>${shown.map((row, place) => html`
          <tr key=${keyOf ? keyOf(row) : place}>${select && html`<td class="pick">${box([row], "Select this row")}</td>`}${columns.map((column) => html`
            <td class=${[column.num && "num", column.wide && "wide", column.wide === "rest" && "rest"].filter(Boolean).join(" ")}>
              ${column.cell(row)}</td>`)}</tr>`)}</tbody>
      </table>
    </div>`;
}

// A long text in a few lines; all of it on demand.
export function Clamped({ children }) {
  const box = useRef();
  const [isOpen, setOpen] = useState(false);
  const [isCut, setCut] = useState(false);
  useEffect(() => { if (!isOpen) setCut(box.current.scrollHeight > box.current.clientHeight + 1); });
  return html`
    <div ref=${box} class=${isOpen ? "" : "clamped"}>${children}</div>
    ${(isCut || isOpen) && html`<button class="plain" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>${isOpen ? "less" : "more"}</button>`}`;
}

// A field of a form, with its name above.
export function Field({ label, children, hint }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

// A form whose values are applied when typing pauses, or by Enter.
export function Filters({ values, onChange: change, fields, label = "Filters" }) {
  const [draft, setDraft] = useState(values);
  const timer = useRef();
  useEffect(() => { setDraft(values); }, [JSON.stringify(values)]);
  const set = (name, value, soon) => {
    const next = { ...draft, [name]: value };
    setDraft(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change(next), soon ? 0 : 300);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  return html`
    <form class="filters" role="search" aria-label=${label} onSubmit=${(event) => {
      event.preventDefault();
      clearTimeout(timer.current);
      change(draft);
    }}>
      ${fields.map(({ name, title, options, type = "text", place, search }) => html`
        <${Field} label=${title}>
          ${options
            ? html`<select value=${draft[name] ?? ""} onChange=${(event) => set(name, event.target.value, true)}>
                ${options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`
            : html`<input type=${type} value=${draft[name] ?? ""} placeholder=${place} min="0"
                data-search=${search} autocomplete="off" spellcheck=${false}
                onInput=${(event) => set(name, event.target.value)} />`}
        <//>`)}
    </form>`;
}

// Seconds of a ban.
export const BANS = [["600", "10 minutes"], ["3600", "1 hour"], ["43200", "12 hours"], ["604800", "7 days"]];

// Questions before a change: `ask({ title, text, label, danger, fields })` gives the values of the
// fields, or null.
let open = null;
export function ask(question) {
  return new Promise((resolve) => open?.({ ...question, resolve }));
}

// The page is told once what was done, or why not.
let tell = null;
export const notify = (text, problem) => tell?.({ text, problem });

// Runs a change after a question, and tells what came of it. True: it was done.
export async function act(question, run, done) {
  const values = await ask(question);
  if (!values) return false;
  return attempt(() => run(values), done);
}

export async function attempt(run, done) {
  try {
    const answer = await run();
    if (done) notify(typeof done === "function" ? done(answer) : done);
    return true;
  } catch (problem) {
    notify(null, problem);
    return false;
  }
}

export function Dialogs() {
  const [question, setQuestion] = useState(null);
  const [values, setValues] = useState({});
  const [notice, setNotice] = useState(null);
  const box = useRef();
  useEffect(() => {
    open = (next) => {
      setValues(Object.fromEntries((next.fields || []).map((field) => [field.name, field.value ?? ""])));
      setQuestion(next);
    };
    tell = setNotice;
    return () => { open = null; tell = null; };
  }, []);
  useEffect(() => { if (question) box.current.showModal(); }, [question]);
  useEffect(() => {
    if (!notice || notice.problem) return undefined;
    const timer = setTimeout(() => setNotice(null), 6000);
    return () => clearTimeout(timer);
  }, [notice]);
  const answer = (given) => {
    question.resolve(given);
    setQuestion(null);
  };
  return html`
    ${question && html`
      <dialog ref=${box} aria-labelledby="question" onCancel=${() => answer(null)}>
        <form onSubmit=${(event) => { event.preventDefault(); answer(values); }}>
          <h2 id="question">${question.title}</h2>
          ${question.text && html`<p>${question.text}</p>`}
          ${(question.fields || []).map((field) => html`
            <${Field} label=${field.title} hint=${field.hint}>
              ${field.options
                ? html`<select value=${values[field.name]} onChange=${(event) => setValues({ ...values, [field.name]: event.target.value })}>
                    ${field.options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`
                : field.lines
                  ? html`<textarea rows=${field.lines} value=${values[field.name]}
                      onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })}></textarea>`
                  : html`<input type=${field.type || "text"} value=${values[field.name]} required=${field.required}
                      autocomplete=${field.type === "password" ? "new-password" : "off"}
                      onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })} />`}
            <//>`)}
          <div class="buttons">
            <button type="button" onClick=${() => answer(null)}>Cancel</button>
            <button class=${question.danger ? "danger" : "primary"}>${question.label}</button>
          </div>
        </form>
      </dialog>`}
    <div class="notices" role="status">
      ${notice && html`<div class=${notice.problem ? "notice bad" : "notice"}>
        <div>${notice.text}${notice.problem && html`<strong>${notice.problem.detail}</strong>
          ${notice.problem.fix && html`<div class="fix">${notice.problem.fix}</div>`}`}</div>
        <button class="plain" aria-label="Close" onClick=${() => setNotice(null)}>×</button>
      </div>`}
    </div>`;
}
