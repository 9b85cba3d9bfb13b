// Who uses memory, why messages were dropped, and which clients lost them.

import { has } from "../api.js";
import { bytes, duration, number } from "../format.js";
import { Empty, Facts, Fault, Page, Section, Table, html, useGet } from "../ui.js";
import { clientHref } from "./clients.js";

const LIVE_MS = 5000;

export function Memory() {
  const { data, problem } = useGet("/memory", { limit: 50 }, LIVE_MS);
  const drops = useGet(has("GET /drops") ? "/drops" : null, undefined, LIVE_MS).data?.items;
  const losers = useGet(has("GET /drops/clients") ? "/drops/clients" : null, { limit: 50 }, LIVE_MS);
  return html`
    <${Page} title="Memory and drops">
      <${Fault} problem=${problem} />
      ${data && html`
        <${Facts} rows=${[
          ["Resident", bytes(data.resident_bytes)],
          ["Allocated", bytes(data.allocated_bytes)],
          ["of which by clients", bytes(data.client_bytes)],
          ["of which by the log's cache", bytes(data.log_cache_bytes)],
          ["of which by the broker itself", bytes(data.other_bytes)],
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
          <${Table} label="Drops" rows=${drops} keyOf=${(row) => `${row.reason} ${row.limit}`} columns=${DROPS} />
        <//>`}
      ${losers.problem && html`<${Fault} problem=${losers.problem} />`}
      ${losers.data && html`
        <${Section} title="Clients that lost messages" note="in the last hour; QoS 0 for offline clients is not counted">
          ${losers.data.items.length === 0
            ? html`<${Empty}>No client has lost a message.<//>`
            : html`<${Table} label="Clients that lost messages" rows=${losers.data.items}
                keyOf=${(row) => `${row.namespace} ${row.client_id}`} columns=${LOSERS} />`}
        <//>`}
    <//>`;
}

const amount = (title, name) => ({ title, num: true, cell: (row) => bytes(row[name]) });

const OWNERS = [
  { title: "User or address", wide: true, sort: (row) => row.owner, cell: (row) => html`<span class="mono">${row.owner}</span>` },
  amount("Queued", "queued_bytes"), amount("Sessions", "session_bytes"), amount("Retained", "retained_bytes"),
  amount("Unsent", "unsent_bytes"), amount("In the log", "logged_bytes"),
];

const cause = ({ reason, limit }) => reason.replaceAll("_", " ") + (limit ? ` (${limit})` : "");
const why = (row) => `${cause(row)} ${number(row.messages)}`;

const LOSERS = [
  { title: "Client ID", wide: true, sort: (row) => row.client_id, cell: (row) => html`<a class="mono" href=${clientHref(row.namespace, row.client_id)}>${row.client_id || "(empty)"}</a>` },
  { title: "Namespace", sort: (row) => row.namespace, cell: (row) => row.namespace },
  { title: "Messages", num: true, sort: (row) => row.messages, cell: (row) => html`<strong>${number(row.messages)}</strong>` },
  { title: "Reasons", cell: (row) => row.reasons.map(why).join(", ") },
  { title: "Since", num: true, sort: (row) => row.first_drop_secs, cell: (row) => duration(row.first_drop_secs) },
  { title: "Last", num: true, sort: (row) => row.last_drop_secs, cell: (row) => `${duration(row.last_drop_secs)} ago` },
];

const DROPS = [
  { title: "Reason", sort: cause, cell: cause },
  { title: "Messages", num: true, sort: (row) => row.messages, cell: (row) => (row.messages > 0 ? html`<strong>${number(row.messages)}</strong>` : "0") },
  { title: "Meaning", wide: true, sort: (row) => row.meaning, cell: (row) => row.meaning },
];
