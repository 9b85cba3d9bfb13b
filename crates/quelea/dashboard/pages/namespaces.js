// Namespaces with their limits and usage.

import { bytes, number } from "../format.js";
import { Badge, List, Page, html } from "../ui.js";

const LIVE_MS = 5000;

export function Namespaces() {
  return html`
    <${Page} title="Namespaces" note="In addition to the default one, to which the limits of the broker apply.">
      <${List} path="/namespaces" label="Namespaces" every=${LIVE_MS} keyOf=${(row) => row.name} columns=${COLUMNS}
        empty="There is only the namespace default. [[namespaces]] in the configuration adds others." />
    <//>`;
}

const write = (name) => (name.endsWith("bytes") || name.startsWith("bytes") ? bytes : number);

function quota(row, name) {
  const { max, count, refused } = row.quotas.find((one) => one.name === name) ?? {};
  if (count == null) return "–";
  const show = write(name);
  const kind = refused > 0 ? `the limit applied ${number(refused)} times` : "";
  return html`<span title=${kind}>${show(count)}${max != null && html`<span class="dim"> of ${show(max)}</span>`}
    ${refused > 0 && html` <${Badge} kind="warn">limited<//>`}</span>`;
}

const COLUMNS = [
  { title: "Name", cell: (row) => html`<a href=${`#/clients?namespace=${encodeURIComponent(row.name)}`}>${row.name}</a>` },
  { title: "State", cell: (row) => (row.state === "open" ? "open" : html`<${Badge} kind="warn">${row.state}<//>`) },
  { title: "Made by", cell: (row) => row.maker },
  { title: "Host names", cell: (row) => row.hosts.join(", ") || html`<span class="dim">–</span>` },
  ...["connections", "sessions", "subscriptions", "retained_messages", "queued_bytes", "logged_bytes"].map((name) => ({
    title: name.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase()), num: true, cell: (row) => quota(row, name),
  })),
];
