// Calls that changed something, or were refused.

import { List } from "../list.js";
import { Badge, Page, When, html } from "../ui.js";

export function Audit() {
  return html`
    <${Page} title="Audit" note="The last 1,000 calls that changed something or were refused. The log has all.">
      <${List} path="/audit" label="Calls" columns=${COLUMNS} empty="No call has changed anything since the start." />
    <//>`;
}

const COLUMNS = [
  { title: "Time", sort: (row) => row.time, cell: (row) => html`<${When} ms=${Date.parse(row.time)} />` },
  { title: "Caller", sort: (row) => row.caller, cell: (row) => row.caller },
  { title: "Call", wide: true, sort: (row) => row.method, cell: (row) => html`<span class="mono">${row.method} ${row.call}</span>` },
  { title: "Subject", sort: (row) => row.subject, cell: (row) => row.subject || html`<span class="dim">–</span>` },
  { title: "Namespace", sort: (row) => row.namespace, cell: (row) => row.namespace || html`<span class="dim">–</span>` },
  { title: "Result", sort: (row) => row.status, cell: (row) => (row.status < 400 ? "done" : html`<${Badge} kind="bad">${row.status}<//> ${row.detail}`) },
];
