// The cluster of this node.

import { bytes, number, duration } from "../format.js";
import { Badge, Empty, Facts, Fault, Page, Section, Table, html, useGet } from "../ui.js";

const LIVE_MS = 2000;

export function Cluster() {
  const { data, problem } = useGet("/cluster", undefined, LIVE_MS);
  return html`
    <${Page} title="Cluster" note=${data && `as ${data.node} knows it`}>
      ${problem?.status === 404
        ? html`<${Empty}>This broker is not part of a cluster.<//>`
        : html`<${Fault} problem=${problem} />`}
      ${data && html`
        <${Facts} rows=${[
          ["This node", `${data.node}, ${data.role}`],
          ...(data.cells?.length ? [["Cells", data.cells.length]] : ofOneCell(data)),
          ["NATS", data.engine_connected ? "connected" : html`<${Badge} kind="bad">not connected<//>`],
        ]} />
        <${Section} title="Nodes">
          <${Table} label="Nodes" rows=${data.nodes} keyOf=${(row) => row.node} columns=${NODES} />
        <//>
        ${data.cells?.length > 0 && html`
          <${Section} title="Cells" note="Each client ID belongs to one of them.">
            <${Table} label="Cells" rows=${data.cells} keyOf=${(row) => row.cell} columns=${CELLS} />
          <//>`}`}
    <//>`;
}

const ofOneCell = (data) => [
  ["Active node", data.active],
  ["Address for clients", data.active_address && html`<span class="mono">${data.active_address}</span>`],
  ["Lease", `epoch ${data.epoch}${data.lease_remaining_seconds > 0 ? `, ${data.lease_remaining_seconds.toFixed(1)} s left` : ""}`],
];

const CELLS = [
  { title: "Cell", num: true, sort: (row) => row.cell, cell: (row) => row.cell },
  { title: "Active node", sort: (row) => row.active, cell: (row) => row.active ?? html`<${Badge} kind="bad">none<//>` },
  { title: "Epoch", num: true, sort: (row) => row.epoch, cell: (row) => row.epoch ?? "–" },
  { title: "This node", sort: (row) => row.role, cell: (row) => row.role ?? "connecting to NATS" },
  { title: "Lag of this node", num: true, sort: (row) => row.lag_messages, cell: (row) => `${number(row.lag_messages)} messages` },
];

const NODES = [
  { title: "Node", sort: (row) => row.node, cell: (row) => row.node },
  { title: "Role", sort: (row) => row.role, cell: (row) => html`<${Badge} kind=${row.role === "active" ? "good" : "plain"}>${row.role}<//>` },
  { title: "Version", sort: (row) => row.version, cell: (row) => row.version },
  { title: "Address", wide: true, sort: (row) => row.address, cell: (row) => html`<span class="mono">${row.address ?? "–"}</span>` },
  { title: "Lag", num: true, sort: (row) => row.lag_messages, cell: (row) => `${number(row.lag_messages)} messages` },
  { title: "Lag in bytes", num: true, sort: (row) => row.lag_bytes, cell: (row) => bytes(row.lag_bytes) },
  { title: "Lag in time", num: true, sort: (row) => row.lag_seconds, cell: (row) => `${row.lag_seconds.toFixed(1)} s` },
  { title: "Last report", num: true, sort: (row) => row.silent_seconds, cell: (row) => `${duration(row.silent_seconds)} ago` },
  { title: "Condition", sort: (row) => row.detail, cell: (row) => row.detail ?? html`<span class="dim">–</span>` },
];
