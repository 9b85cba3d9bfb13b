// Life-cycle events as they happen.

import { useEffect, useState } from "../vendor/hooks.js";
import { stream } from "../api.js";
import { Clamped, Empty, Fault, Filters, Page, Table, When, html } from "../ui.js";
import { clientHref } from "./clients.js";

// Events that are shown; older ones are dropped.
const EVENTS_MAX = 500;
const RETRY_MS = 2000;

// The newest come first. At the limit the type of which there are most loses its oldest ones: none
// pushes out the others.
export function fitting(events) {
  const byType = new Map();
  for (const { event } of events) byType.set(event, (byType.get(event) ?? 0) + 1);
  const left = [...events];
  while (left.length > EVENTS_MAX) {
    const [type, count] = [...byType].reduce((most, it) => (it[1] > most[1] ? it : most));
    byType.set(type, count - 1);
    left.splice(left.findLastIndex(({ event }) => event === type), 1);
  }
  return left;
}

export function useStream(path, params, isOn) {
  const [view, setView] = useState({ events: [], lost: 0 });
  const key = path + JSON.stringify(params) + isOn;
  useEffect(() => {
    setView({ events: [], lost: 0 });
    if (!isOn) return undefined;
    const abort = new AbortController();
    let [pending, timer] = [[], null];
    const show = () => {
      timer = null;
      const fresh = pending.reverse();
      pending = [];
      setView((old) => ({ ...old, events: fitting([...fresh, ...old.events]) }));
    };
    const onEvent = (event) => {
      pending.push(event);
      if (pending.length > EVENTS_MAX) pending = fitting(pending.reverse()).reverse();
      timer ??= setTimeout(show, 100);
    };
    const read = async () => {
      try {
        setView((old) => ({ ...old, problem: null, open: true }));
        await stream(path, params, onEvent, abort.signal);
      } catch (problem) {
        if (abort.signal.aborted) return;
        setView((old) => ({ ...old, open: false, problem: problem.status ? problem : null }));
        if (problem.status && problem.status < 500) return;
      }
      if (!abort.signal.aborted) setTimeout(() => abort.signal.aborted || read(), RETRY_MS);
    };
    read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key]);
  return view;
}

let nextKey = 0;

export function Events() {
  const [filters, setFilters] = useState({ type: "", client_id: "" });
  const [paused, setPaused] = useState(null);
  const { events, problem } = useStream("/events", filters, true);
  const rows = (paused ?? events).map(parsed);
  return html`
    <${Page} title="Events" note="Since this page was opened; the newest is at the top."
      actions=${html`<button aria-pressed=${!!paused} onClick=${() => setPaused(paused ? null : events)}>${paused ? "Continue" : "Hold"}</button>`}>
      <${Filters} values=${filters} onChange=${setFilters} fields=${[
        { name: "type", title: "Type begins with", place: "quelea.session.", search: true },
        { name: "client_id", title: "Client ID" },
      ]} />
      <${Fault} problem=${problem} />
      ${rows.length === 0
        ? html`<${Empty}>Waiting for an event: a client that connects or disconnects makes one.<//>`
        : html`<${Table} label="Events" kind="text" rows=${rows} keyOf=${(row) => row.key} columns=${COLUMNS} />`}
    <//>`;
}

const known = new WeakMap();
function parsed(event) {
  if (!known.has(event)) {
    nextKey += 1;
    known.set(event, { key: nextKey, ...JSON.parse(event.data) });
  }
  return known.get(event);
}

const client = (row) => row.clientid ?? row.data?.client_id ?? row.data?.clientName;

export function eventDetails(data) {
  const entries = Object.entries(data ?? {}).filter(([name, value]) => value != null && value !== "" && name !== "client_id");
  return entries.map(([name, value]) => html`<span class="pair"><span class="dim">${name}</span> ${typeof value === "object" ? JSON.stringify(value) : String(value)}</span>`);
}

const COLUMNS = [
  { title: "Time", sort: (row) => row.time, cell: (row) => html`<${When} ms=${Date.parse(row.time)} />` },
  { title: "Type", sort: (row) => row.type, cell: (row) => row.type?.replace(/^quelea\./, "") },
  { title: "Client", wide: true, sort: client, cell: (row) => (client(row) == null ? "–" : html`<a class="mono" href=${clientHref(row.namespace ?? row.data?.namespace ?? "default", client(row))}>${client(row)}</a>`) },
  { title: "Details", wide: "rest", cell: (row) => html`<${Clamped}>${eventDetails(row.data)}<//>` },
];
