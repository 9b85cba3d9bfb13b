// Limits, what is used of them, and how often they were reached.

import { bytes, number } from "../format.js";
import { Badge, Fault, Page, Section, Table, html, useGet } from "../ui.js";

const LIVE_MS = 5000;
const NEARLY = 0.8;
const KINDS = [["broker", "Broker"], ["listener", "Listeners"], ["namespace", "Namespaces"]];

export function Limits() {
  const { data, problem } = useGet("/limits", undefined, LIVE_MS);
  return html`
    <${Page} title="Limits">
      <${Fault} problem=${problem} />
      ${data && KINDS.map(([kind, title]) => {
        const rows = data.items.filter((row) => row.kind === kind);
        return rows.length > 0 && html`
          <${Section} title=${title} key=${kind}>
            <${Table} label=${title} rows=${rows} keyOf=${(row) => `${row.owner} ${row.name}`} columns=${columns(kind)} />
          <//>`;
      })}
    <//>`;
}

const amount = (value, unit) => (unit.startsWith("bytes") ? bytes(value) : number(value));
const isRate = (row) => row.unit.endsWith("per second");

function share(row) {
  if (row.max == null || row.used == null || isRate(row)) return html`<span class="dim">–</span>`;
  const part = row.used / row.max;
  const text = `${Math.round(part * 100)} %`;
  return part < NEARLY ? text : html`<${Badge} kind=${part < 1 ? "warn" : "bad"}>${text}<//>`;
}

const columns = (kind) => [
  kind !== "broker" && { title: kind === "listener" ? "Listener" : "Namespace", cell: (row) => html`<span class="mono">${row.owner}</span>` },
  { title: "Limit", wide: true, sort: (row) => row.name, cell: (row) => html`<span class="mono">${row.name}</span>` },
  { title: "Most", num: true, sort: (row) => row.max, cell: (row) => (row.max == null ? "none" : amount(row.max, row.unit)) },
  { title: "Used", num: true, sort: (row) => row.used, cell: (row) => (row.used == null || isRate(row) ? html`<span class="dim">–</span>` : amount(row.used, row.unit)) },
  { title: "Share", num: true, cell: share },
  { title: "Refused", num: true, sort: (row) => row.refused, cell: (row) => (row.refused == null ? html`<span class="dim">–</span>` : amount(row.refused, "")) },
].filter(Boolean);
