// Packets of clients as they come and go.

import { useState } from "../vendor/hooks.js";
import { bytes, bytesOfBase64, payload } from "../format.js";
import { Badge, Empty, Fault, Field, Page, Table, html } from "../ui.js";
import { clientHref } from "./clients.js";
import { useStream } from "./events.js";

const PAYLOADS = [["0", "none"], ["64", "64 bytes"], ["1024", "1,024 bytes"]];

export function Trace({ query }) {
  const start = { client_id: query.client_id ?? "", topic: "", address: "", namespace: query.namespace ?? "", payload_bytes: "0" };
  const [draft, setDraft] = useState(start);
  const [params, setParams] = useState(query.client_id ? start : null);
  const { events, problem } = useStream("/trace", params ?? {}, params !== null);
  const set = (name) => (event) => setDraft({ ...draft, [name]: event.target.value });
  const lost = events.filter(({ event }) => event === "lost");
  const lostCount = lost.reduce((sum, { data }) => sum + JSON.parse(data).packets, 0);
  const rows = events.filter(({ event }) => event === "packet").map(parsed);
  const input = (name, title, place) => html`
    <${Field} label=${title}><input class="mono" value=${draft[name]} onInput=${set(name)} placeholder=${place} disabled=${params !== null}
      autocomplete="off" spellcheck=${false} /><//>`;
  return html`
    <${Page} title="Trace" note="The newest packet is at the top. At least one filter is needed.">
      <form class="filters" onSubmit=${(event) => { event.preventDefault(); setParams(draft); }}>
        ${input("client_id", "Client ID")}${input("topic", "Topic filter", "home/#")}${input("address", "Address or network", "10.0.0.0/8")}
        <${Field} label="Payloads"><select value=${draft.payload_bytes} onChange=${set("payload_bytes")} disabled=${params !== null}>
          ${PAYLOADS.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select><//>
        ${params === null
          ? html`<button key="start" class="primary" disabled=${!draft.client_id && !draft.topic && !draft.address}>Start</button>`
          : html`<button key="stop" type="button" onClick=${() => setParams(null)}>Stop</button>`}
      </form>
      <${Fault} problem=${problem} />
      ${lostCount > 0 && html`<p><${Badge} kind="warn">${lostCount} packets are missing<//> This page was too slow to show them.</p>`}
      ${params !== null && rows.length === 0 && html`<${Empty}>Waiting for a packet.<//>`}
      ${rows.length > 0 && html`<${Table} label="Packets" kind="text" rows=${rows} keyOf=${(row) => row.key} columns=${COLUMNS} />`}
    <//>`;
}

let nextKey = 0;
const known = new WeakMap();
function parsed(event) {
  if (!known.has(event)) {
    nextKey += 1;
    known.set(event, { key: nextKey, ...JSON.parse(event.data) });
  }
  return known.get(event);
}

function details(row) {
  const flags = [
    row.packet_id != null && `ID ${row.packet_id}`, row.qos != null && `QoS ${row.qos}`,
    row.retain && "retain", row.dup && "duplicate", row.payload_bytes != null && `payload ${bytes(row.payload_bytes)}`,
  ].filter(Boolean);
  const shown = row.payload_base64 && payload(bytesOfBase64(row.payload_base64)).text;
  return html`
    ${(row.topic ?? row.filters) && html`<span class="mono pair">${row.topic ?? row.filters.join(", ")}</span>`}
    <span class="dim pair">${flags.join(", ")}</span>
    ${row.reasons && html`<span class="pair">${row.reasons.join(", ")}</span>`}
    ${row.detail && html`<span class="pair">${row.detail}</span>`}
    ${shown && html`<pre>${shown}</pre>`}`;
}

// With milliseconds: packets of one second differ.
const clock = (time) => `${new Date(time).toTimeString().slice(0, 8)}.${time.slice(20, 23)}`;

const COLUMNS = [
  { title: "Time", cell: (row) => html`<time title=${row.time}>${clock(row.time)}</time>` },
  { title: "", cell: (row) => (row.direction === "in" ? "from" : "to") },
  { title: "Client", wide: true, cell: (row) => html`<a class="mono" href=${clientHref(row.namespace, row.client_id)}>${row.client_id}</a>` },
  { title: "Packet", cell: (row) => row.packet },
  { title: "Size", num: true, cell: (row) => (row.bytes == null ? "–" : bytes(row.bytes)) },
  { title: "Details", wide: "rest", cell: details },
];
