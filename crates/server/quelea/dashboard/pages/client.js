// One client: its session, connection and subscriptions, and what an operator may do with it.

import { del, has, may, post, query } from "../api.js";
import { bytes, clipped, duration, number } from "../format.js";
import { List } from "../list.js";
import { BANS, Badge, Clamped, Facts, Fault, Online, Page, Section, Table, When, act, html, useGet } from "../ui.js";
import { eventDetails } from "./events.js";
import { Question } from "./permissions.js";

const LIVE_MS = 2000;

export function Client({ params }) {
  const { namespace, id } = params;
  const { data, problem, reload } = useGet("/client", { client_id: id, namespace }, LIVE_MS);
  return html`
    <${Page} title=${id || "(empty client ID)"} note=${namespace === "default" ? "" : `in namespace ${namespace}`}
      actions=${data && html`<${Actions} client=${data} reload=${reload} />`}>
      <p class="back"><a href="#/clients">All clients</a></p>
      <${Fault} problem=${problem} />
      ${data && html`<${Session} client=${data} />`}
      ${data?.details?.events.length > 0 && html`
        <${Section} title="Last events"><${Table} label="Last events" kind="text" rows=${data.details.events} columns=${EVENTS} /><//>`}
      ${data && has("GET /client/permissions") && html`
        <${Section} title="What may it do?"><${Question} client=${{ namespace, client_id: id }} /><//>`}
      ${data && html`
        <${Section} title="Subscriptions" note=${number(data.subscriptions)}>
          <${List} path="/client/subscriptions" params=${{ client_id: id, namespace }} label="Subscriptions"
            columns=${SUBSCRIPTIONS} version=${data.subscriptions} empty="The client has no subscription." />
        <//>`}
    <//>`;
}

const mono = (text) => html`<span class="mono">${text}</span>`;

function Session({ client }) {
  const isSlow = client.in_flight_max && client.in_flight >= client.in_flight_max;
  const expiry = client.session_expiry_secs == null ? "never" : `${duration(client.session_expiry_secs)} after the connection`;
  const more = client.details ?? {};
  const lost = more.dropped?.reduce((sum, { messages }) => sum + messages, 0);
  const attributes = Object.entries(more.attributes ?? {});
  return html`
    <div class="columns">
      <${Section} title="Connection">
        <${Facts} rows=${[
          ["State", html`<${Online} is=${client.connected} /> ${client.connected ? "connected" : "offline"}`],
          ["Connected", client.connected_at && html`<${When} ms=${Date.parse(client.connected_at)} />`],
          ["Address", client.address && mono(client.address)],
          ["Listener", client.listener],
          ["TLS", client.connected && (more.tls_version ? html`${more.tls_version} <span class="dim">${more.tls_cipher}</span>` : "none")],
          ["Protocol", client.protocol && `MQTT ${client.protocol}`],
          ["Keep-alive", client.keep_alive_secs === 0 ? "none" : client.keep_alive_secs && duration(client.keep_alive_secs)],
          ["Last packet", client.silent_secs == null ? null : `${duration(client.silent_secs)} ago`],
          ["Unsent", client.unsent_bytes == null ? null : bytes(client.unsent_bytes)],
        ]} /><//>
      <${Section} title="Identity">
        <${Facts} rows=${[
          ["User", client.username],
          more.login && ["Logged in as", more.login],
          ["Provider", more.provider ?? (client.username == null ? "anonymous" : null)],
          more.superuser && ["Access rules", "do not apply"],
          more.credential_expires_at && ["Credential ends", html`<${When} ms=${Date.parse(more.credential_expires_at)} />`],
          ["Groups", more.groups?.join(", ") || null],
          ...attributes.map(([name, value]) => [name, mono(clipped(typeof value === "string" ? value : JSON.stringify(value), 200))]),
        ]} /><//>
      <${Section} title="Session">
        <${Facts} rows=${[
          ["Stored", client.durable ? "in the durable log" : "in memory only"],
          ["Expires", client.expires_in_secs == null ? expiry : `in ${duration(client.expires_in_secs)}`],
          ["Subscriptions", `${number(client.subscriptions)}${client.shared_subscriptions > 0 ? `, ${number(client.shared_subscriptions)} of them shared` : ""}`],
          ["Will", more.will ? mono(clipped(more.will.topic, 200)) : client.has_will ? "set" : "none"],
          more.will && ["", `QoS ${more.will.qos}${more.will.retain ? ", retained" : ""}, ${bytes(more.will.payload_bytes)}${more.will.delay_secs ? `, after ${duration(more.will.delay_secs)}` : ""}`],
        ]} /><//>
      <${Section} title="Messages" note="in and out on this connection">
        <${Facts} rows=${[
          ["In", client.connected && html`${number(client.messages_received)} <span class="dim">${bytes(client.bytes_received)}</span>`],
          ["Out", client.connected && html`${number(client.messages_sent)} <span class="dim">${bytes(client.bytes_sent)}</span>`],
          ["Queued", html`${number(client.queued_messages)} ${client.queued_messages > 0 && html`<${Badge} kind="warn">behind<//>`}`],
          ["Queued in memory", bytes(client.queued_bytes)],
          ["In flight", html`${number(client.in_flight)}${client.in_flight_max ? ` of ${number(client.in_flight_max)}` : ""} ${isSlow && html`<${Badge} kind="warn">window full<//>`}`],
          ["QoS 2 incoming", number(client.incoming)],
          ["Lost in the last hour", lost ? html`<${Badge} kind="warn">${number(lost)}<//> ${more.dropped.map(({ reason, messages }) => `${reason.replaceAll("_", " ")} ${number(messages)}`).join(", ")}` : "none"],
        ]} /><//>
    </div>`;
}

const EVENTS = [
  { title: "Time", sort: (row) => row.time, cell: (row) => html`<${When} ms=${Date.parse(row.time)} />` },
  { title: "Type", sort: (row) => row.kind, cell: (row) => row.kind },
  { title: "Details", wide: "rest", cell: (row) => html`<${Clamped}>${eventDetails(row.data)}<//>` },
];

const yes = (is) => (is ? "yes" : html`<span class="dim">no</span>`);

const SUBSCRIPTIONS = [
  { title: "Filter", wide: true, sort: (row) => row.filter, cell: (row) => html`<span class="mono">${row.filter}</span>` },
  { title: "Shared group", sort: (row) => row.share, cell: (row) => row.share ?? html`<span class="dim">–</span>` },
  { title: "QoS", num: true, sort: (row) => row.qos, cell: (row) => row.qos },
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
