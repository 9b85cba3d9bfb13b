// Who uses memory, and why messages were dropped.

import { has } from "../api.js";
import { bytes, number } from "../format.js";
import { Empty, Facts, Fault, Page, Section, Table, html, useGet } from "../ui.js";

const LIVE_MS = 5000;

export function Memory() {
  const { data, problem } = useGet("/memory", { limit: 50 }, LIVE_MS);
  const drops = useGet(has("GET /drops") ? "/drops" : null, undefined, LIVE_MS).data?.items;
  return html`
    <${Page} title="Memory and drops">
      <${Fault} problem=${problem} />
      ${data && html`
        <${Facts} rows=${[
          ["Resident", bytes(data.resident_bytes)],
          ["Limit", data.max_bytes == null ? "none" : bytes(data.max_bytes)],
          ["Retained messages", bytes(data.retained_bytes)],
        ]} />
        <${Section} title="Largest users and addresses">
          ${data.owners.length === 0
            ? html`<${Empty}>No client uses memory.<//>`
            : html`<${Table} label="Owners" rows=${data.owners} keyOf=${(row) => row.owner} columns=${OWNERS} />`}
        <//>`}
      ${drops && html`
        <${Section} title="Dropped messages" note="since the start">
          <${Table} label="Drops" rows=${drops} keyOf=${(row) => row.reason} columns=${DROPS} />
        <//>`}
    <//>`;
}

const amount = (title, name) => ({ title, num: true, cell: (row) => bytes(row[name]) });

const OWNERS = [
  { title: "User or address", wide: true, cell: (row) => html`<span class="mono">${row.owner}</span>` },
  amount("Queued", "queued_bytes"), amount("Sessions", "session_bytes"), amount("Retained", "retained_bytes"),
  amount("Unsent", "unsent_bytes"), amount("In the log", "logged_bytes"),
];

const DROPS = [
  { title: "Reason", cell: (row) => row.reason.replaceAll("_", " ") },
  { title: "Messages", num: true, cell: (row) => (row.messages > 0 ? html`<strong>${number(row.messages)}</strong>` : "0") },
  { title: "Meaning", wide: true, cell: (row) => row.meaning },
];
