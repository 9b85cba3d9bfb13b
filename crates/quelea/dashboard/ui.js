// Parts that all pages are made of.

import { h } from "./vendor/preact.js";
import { useCallback, useEffect, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { get, state, onChange } from "./api.js";
import { SHOWN_BYTES_MAX, bytes, dateTime, payload, pretty, relative } from "./format.js";

export const html = htm.bind(h);

// Requests for one page of a list whose filter meets few rows.
const REQUESTS_MAX = 5;
const ROWS = 50;

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

// The begin of a payload of `size` bytes. `load` gives all of them, for a download.
export function Payload({ data, size = data.length, load, name = "payload" }) {
  const shown = payload(data, size);
  const isWhole = shown.shown === size;
  const save = async () => {
    const url = URL.createObjectURL(new Blob([await load()]));
    Object.assign(document.createElement("a"), { href: url, download: name }).click();
    URL.revokeObjectURL(url);
  };
  return html`
    <pre tabindex="0" aria-label="Payload">${isWhole && shown.kind === "text" ? pretty(shown.text) : shown.text}</pre>
    ${(!isWhole || size > SHOWN_BYTES_MAX) && html`<p class="cut"><span class="dim">The first ${bytes(shown.shown)} of ${bytes(size)}.</span>
      ${load && html`<button class="small" onClick=${() => attempt(save)}>Download</button>`}</p>`}`;
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

// `columns`: { title, cell(row), num, wide }; wide "rest": it gets the space that is left. The box scrolls sideways on narrow screens. `fixed`:
// tables below each other have the same columns.
export function Table({ columns, rows, label, keyOf, fixed }) {
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${label}>
      <table class=${fixed ? "fixed" : ""}>
        <thead><tr>${columns.map((column) => html`
          <th scope="col" class=${column.num ? "num" : ""}>${column.title}</th>`)}</tr></thead>
        <tbody>${rows.map((row, place) => html`
          <tr key=${keyOf ? keyOf(row) : place}>${columns.map((column) => html`
            <td class=${[column.num && "num", column.wide && "wide", column.wide === "rest" && "rest"].filter(Boolean).join(" ")}>
              ${column.cell(row)}</td>`)}</tr>`)}</tbody>
      </table>
    </div>`;
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

export function List({ path, params = {}, columns, label, empty, keyOf, version = 0, every }) {
  const { cursors, rows, next, problem, loading, load, isFresh } = usePages(path, params);
  useEffect(() => { if (version) load(cursors); }, [version]);
  useEvery(every || 3600_000, () => every && !loading && load(cursors), [every, cursors, loading]);
  const first = (cursors.length - 1) * ROWS;
  return html`
    <${Fault} problem=${problem} />
    <div class=${loading ? "list busy" : "list"} aria-busy=${loading}>
      ${isFresh && rows.length === 0 && !loading && !problem && !next
        ? html`<${Empty}>${empty || "There is none."}<//>`
        : html`<${Table} columns=${columns} rows=${isFresh ? rows : []} label=${label} keyOf=${keyOf} />`}
    </div>
    ${(cursors.length > 1 || next) && html`
      <nav class="pager" aria-label="Pages">
        <button disabled=${cursors.length < 2 || loading} onClick=${() => load(cursors.slice(0, -1))}>Previous</button>
        <span class="dim">${rows.length ? `${first + 1} to ${first + rows.length}` : "no row in this part"}</span>
        <button disabled=${!next || loading} onClick=${() => load([...cursors, next])}>Next</button>
      </nav>`}`;
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
