// What needs a person, as the broker has found it.

import { number } from "../format.js";
import { Badge, Empty, Fault, Page, Table, html } from "../ui.js";

const KINDS = { critical: "bad", warning: "warn" };
// Where more is shown.
const PAGES = {
  not_ready: "log", bridge_away: "bridges", certificate_expires: "listeners", listener_paused: "listeners",
  log_full: "logs", log_poisoned: "logs", memory: "memory", queues: "memory", limit: "limits",
  authorization_service: "rules", authentication_service: "log", cluster_engine: "cluster",
};

// `alarms`: what the frame has asked for, so that its badge and this page show the same.
export function Alarms({ alarms }) {
  const { data, problem } = alarms;
  const count = data?.items.length;
  return html`
    <${Page} title="Alarms" note=${count ? `${number(count)} now` : ""}>
      <${Fault} problem=${problem} />
      ${data && (count === 0
        ? html`<${Empty}>There is no alarm.<//>`
        : html`<${Table} label="Alarms" kind="text" rows=${data.items} keyOf=${(row) => `${row.kind} ${row.subject}`} columns=${COLUMNS} />`)}
    <//>`;
}

const COLUMNS = [
  { title: "Severity", sort: (row) => row.severity, cell: (row) => html`<${Badge} kind=${KINDS[row.severity]}>${row.severity}<//>` },
  { title: "Kind", sort: (row) => row.kind, cell: (row) => html`<a href=${`#/${PAGES[row.kind] ?? "overview"}`}>${row.kind.replaceAll("_", " ")}</a>` },
  { title: "About", sort: (row) => row.subject, cell: (row) => (row.subject ? html`<span class="mono">${row.subject}</span>` : "broker") },
  { title: "What is wrong", wide: "rest", cell: (row) => html`${row.detail}<div class="fix">${row.fix}</div>` },
];

// The worst alarm, beside the name of the page.
export function AlarmBadge({ alarms }) {
  const items = alarms.data?.items ?? [];
  if (items.length === 0) return null;
  return html` <span class=${`badge ${KINDS[items[0].severity]}`} title=${items[0].detail}>${number(items.length)}</span>`;
}
