// Bridges to other brokers.

import { bytes, number } from "../format.js";
import { Badge, Empty, Fault, Page, Table, html, useGet } from "../ui.js";

const LIVE_MS = 2000;

export function Bridges() {
  const { data, problem } = useGet("/bridges", undefined, LIVE_MS);
  return html`
    <${Page} title="Bridges" note="Numbers count from the start of the broker.">
      <${Fault} problem=${problem} />
      ${data && (data.items.length === 0
        ? html`<${Empty}>No bridge is configured.<//>`
        : html`<${Table} label="Bridges" rows=${data.items} keyOf=${(row) => row.name} columns=${COLUMNS} />`)}
    <//>`;
}

function state(row) {
  if (row.state === "connected" && row.refused_subscriptions.length === 0) return "connected";
  const refused = row.refused_subscriptions.length > 0 && `refused: ${row.refused_subscriptions.join(", ")}`;
  const why = [row.error, refused].filter(Boolean).join("; ");
  return html`<${Badge} kind=${row.state === "connected" ? "warn" : "bad"}>${row.state}<//> <span class="dim">${why}</span>`;
}

const count = (title, name) => ({ title, num: true, cell: (row) => number(row[name]) });

const COLUMNS = [
  { title: "Bridge", sort: (row) => row.name, cell: (row) => row.name },
  { title: "Address", sort: (row) => row.address, cell: (row) => html`<span class="mono">${row.address}</span>` },
  { title: "State", wide: true, cell: state },
  { title: "Lag", num: true, sort: (row) => row.lag_messages, cell: (row) => `${number(row.lag_messages)} (${bytes(row.lag_bytes)})` },
  count("Out", "messages_out"), count("In", "messages_in"),
  count("Refused out", "refused_out"), count("Refused in", "refused_in"), count("Connects", "connects"),
];
