// One client: its session, connection and subscriptions, and what an operator may do with it.

import { del, has, may, post, query } from "../api.js";
import { bytes, duration, number } from "../format.js";
import { Badge, Facts, Fault, List, Online, Page, Section, act, html, useGet } from "../ui.js";
import { Question } from "./permissions.js";

const LIVE_MS = 2000;
const BANS = [["600", "10 minutes"], ["3600", "1 hour"], ["43200", "12 hours"], ["604800", "7 days"]];

export function Client({ params }) {
  const { namespace, id } = params;
  const { data, problem, reload } = useGet("/client", { client_id: id, namespace }, LIVE_MS);
  return html`
    <${Page} title=${id || "(empty client ID)"} note=${namespace === "default" ? "" : `in namespace ${namespace}`}
      actions=${data && html`<${Actions} client=${data} reload=${reload} />`}>
      <p class="back"><a href="#/clients">All clients</a></p>
      <${Fault} problem=${problem} />
      ${data && html`<${Session} client=${data} />`}
      ${data && has("GET /client/permissions") && html`
        <${Section} title="What may it do?"><${Question} client=${{ namespace, client_id: id }} /><//>`}
      ${data && html`
        <${Section} title="Subscriptions" note=${number(data.subscriptions)}>
          <${List} path="/client/subscriptions" params=${{ client_id: id, namespace }} label="Subscriptions"
            columns=${SUBSCRIPTIONS} version=${data.subscriptions} empty="The client has no subscription." />
        <//>`}
    <//>`;
}

function Session({ client }) {
  const isSlow = client.in_flight_max && client.in_flight >= client.in_flight_max;
  const expiry = client.session_expiry_secs == null ? "never" : `${duration(client.session_expiry_secs)} after the connection`;
  return html`
    <div class="columns">
      <${Section} title="Connection">
        <${Facts} rows=${[
          ["State", html`<${Online} is=${client.connected} /> ${client.connected ? "connected" : "offline"}`],
          ["User", client.username],
          ["Address", client.address && html`<span class="mono">${client.address}</span>`],
          ["Protocol", client.protocol && `MQTT ${client.protocol}`],
          ["Keep-alive", client.keep_alive_secs === 0 ? "none" : client.keep_alive_secs && duration(client.keep_alive_secs)],
          ["Last packet", client.silent_secs == null ? null : `${duration(client.silent_secs)} ago`],
          ["Unsent", client.unsent_bytes == null ? null : bytes(client.unsent_bytes)],
        ]} /><//>
      <${Section} title="Session">
        <${Facts} rows=${[
          ["Stored", client.durable ? "in the durable log" : "in memory only"],
          ["Expires", client.expires_in_secs == null ? expiry : `in ${duration(client.expires_in_secs)}`],
          ["Will", client.has_will ? "set" : "none"],
          ["Subscriptions", `${number(client.subscriptions)}${client.shared_subscriptions > 0 ? `, ${number(client.shared_subscriptions)} of them shared` : ""}`],
        ]} /><//>
      <${Section} title="Messages">
        <${Facts} rows=${[
          ["Queued", html`${number(client.queued_messages)} ${client.queued_messages > 0 && html`<${Badge} kind="warn">behind<//>`}`],
          ["Queued in memory", bytes(client.queued_bytes)],
          ["In flight", html`${number(client.in_flight)}${client.in_flight_max ? ` of ${number(client.in_flight_max)}` : ""} ${isSlow && html`<${Badge} kind="warn">window full<//>`}`],
          ["QoS 2 incoming", number(client.incoming)],
        ]} /><//>
    </div>`;
}

const yes = (is) => (is ? "yes" : html`<span class="dim">no</span>`);

const SUBSCRIPTIONS = [
  { title: "Filter", wide: true, cell: (row) => html`<span class="mono">${row.filter}</span>` },
  { title: "Shared group", cell: (row) => row.share ?? html`<span class="dim">–</span>` },
  { title: "QoS", num: true, cell: (row) => row.qos },
  { title: "No Local", cell: (row) => yes(row.no_local) },
  { title: "Retain As Published", cell: (row) => yes(row.retain_as_published) },
  { title: "Identifier", num: true, cell: (row) => row.identifier ?? "–" },
];

function Actions({ client, reload }) {
  const { client_id: id, namespace } = client;
  const change = async (question, run, done) => {
    if (await act(question, run, done)) reload();
  };
  const disconnect = () => change({
    title: `Disconnect ${id}?`, label: "Disconnect", danger: true,
    text: "Its connection is closed with reason 0x98. The session stays, and the client may reconnect.",
  }, () => post("/client/disconnect", undefined, { client_id: id, namespace }), `${id} was disconnected.`);
  const ban = () => change({
    title: `Ban ${id}?`, label: "Ban", danger: true,
    text: "Its connection is closed, and the client ID cannot connect until the ban ends. The session stays.",
    fields: [{ name: "secs", title: "For", options: BANS, value: "3600" }],
  }, ({ secs }) => post("/client/disconnect", undefined, { client_id: id, namespace, ban_secs: secs }), `${id} is banned.`);
  const purge = async () => {
    const queued = client.queued_messages === 1 ? "1 queued message" : `${number(client.queued_messages)} queued messages`;
    const is = await act({
      title: `Delete the session of ${id}?`, label: "Delete session", danger: true,
      text: `This deletes ${number(client.subscriptions)} subscriptions and ${queued}, and closes the connection. The will is published. It cannot be undone.`,
    }, () => del("/client", { client_id: id, namespace }), `The session of ${id} was deleted.`);
    if (is) location.hash = "#/clients";
  };
  return html`
    ${may("operator") && html`
      ${has("GET /trace") && html`<a class="button" href=${`#/trace${query({ namespace, client_id: id })}`}>Trace</a>`}
      ${client.connected && html`<button onClick=${disconnect}>Disconnect</button>`}
      <button onClick=${ban}>Ban</button>`}
    ${may("admin") && html`<button class="danger" onClick=${purge}>Delete session</button>`}`;
}
