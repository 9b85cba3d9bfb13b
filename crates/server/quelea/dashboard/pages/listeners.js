// Listeners, their connections and certificates.

import { may, post } from "../api.js";
import { number } from "../format.js";
import { Badge, Fault, Page, Table, When, act, html, useGet } from "../ui.js";

const LIVE_MS = 2000;
const DAYS_WARN = 21;

export function Listeners() {
  const { data, problem, reload } = useGet("/listeners", undefined, LIVE_MS);
  const pause = async ({ name }) => {
    const is = await act({
      title: `Pause ${name}?`, label: "Pause", danger: true,
      text: "New connections are closed at once, open connections stay. A restart of the broker resumes it.",
    }, () => post("/listeners/pause", undefined, { name }), `${name} is paused.`);
    if (is) reload();
  };
  const resume = async ({ name }) => {
    const is = await act({
      title: `Resume ${name}?`, label: "Resume", text: "It accepts connections again.",
    }, () => post("/listeners/resume", undefined, { name }), `${name} accepts connections.`);
    if (is) reload();
  };
  return html`
    <${Page} title="Listeners">
      <${Fault} problem=${problem} />
      ${data && html`<${Table} label="Listeners" rows=${data.items} keyOf=${(row) => row.name} columns=${columns(pause, resume)} />`}
    <//>`;
}

function certificate(row) {
  if (row.certificate_expires_at == null) return html`<span class="dim">–</span>`;
  const when = html`<${When} ms=${row.certificate_expires_at * 1000} />`;
  const ends = row.certificate_days_left >= DAYS_WARN
    ? when
    : html`<${Badge} kind=${row.certificate_days_left === 0 ? "bad" : "warn"}>${when}<//>`;
  const names = row.certificate_names.map((name) => name.replace(/^(DNS|IP):/, "")).join(", ");
  return html`${ends}<div class="dim mono" title=${`SHA-256 ${row.certificate_fingerprint}`}>${names || row.certificate_subject}</div>`;
}

const columns = (pause, resume) => [
  { title: "Listener", sort: (row) => row.name, cell: (row) => row.name },
  { title: "URL", wide: true, sort: (row) => row.url, cell: (row) => html`<span class="mono">${row.url}</span>` },
  { title: "Connections", num: true, sort: (row) => row.connections, cell: (row) => number(row.connections) },
  { title: "Accepted", num: true, sort: (row) => row.accepted, cell: (row) => number(row.accepted) },
  { title: "Admitted", num: true, sort: (row) => row.admitted, cell: (row) => number(row.admitted) },
  { title: "Certificate expires", wide: true, cell: certificate },
  { title: "State", sort: (row) => row.paused, cell: (row) => (row.paused ? html`<${Badge} kind="warn">paused<//>` : "open") },
  may("operator") && { title: "", num: true, cell: (row) => html`<button class="small" onClick=${() => (row.paused ? resume(row) : pause(row))}>${row.paused ? "Resume" : "Pause"}</button>` },
].filter(Boolean);
