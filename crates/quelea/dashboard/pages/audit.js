// Calls that changed something, or were refused.

import { Badge, List, Page, When, html } from "../ui.js";

export function Audit() {
  return html`
    <${Page} title="Audit" note="The last 1,000 calls that changed something or were refused. The log has all.">
      <${List} path="/audit" label="Calls" columns=${COLUMNS} empty="No call has changed anything since the start." />
    <//>`;
}

const COLUMNS = [
  { title: "Time", cell: (row) => html`<${When} ms=${Date.parse(row.time)} />` },
  { title: "Caller", cell: (row) => row.caller },
  { title: "Call", wide: true, cell: (row) => html`<span class="mono">${row.method} ${row.call}</span>` },
  { title: "Subject", cell: (row) => row.subject || html`<span class="dim">–</span>` },
  { title: "Namespace", cell: (row) => row.namespace || html`<span class="dim">–</span>` },
  { title: "Result", cell: (row) => (row.status < 400 ? "done" : html`<${Badge} kind="bad">${row.status}<//> ${row.detail}`) },
];
