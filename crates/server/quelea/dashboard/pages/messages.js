// Publishing by the API, and a client of its own over WebSocket.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { may, post } from "../api.js";
import { SHOWN_BYTES_MAX, bytes, dateTime } from "../format.js";
import { Empty, Fault, Field, Page, Payload, Section, attempt, html, useGet } from "../ui.js";

const QOS = [0, 1, 2];
// Messages that are shown; older ones are dropped.
const MESSAGES_MAX = 200;
// Bytes of their payloads that are kept; of those behind them only what is shown.
const KEPT_BYTES_MAX = 32 << 20;
const CONNECT_MS = 10_000;

export function Messages() {
  return html`
    <${Page} title="Publish & subscribe">
      <div class="columns">
        ${may("operator") && html`<${Publish} />`}
        <${Subscribe} />
      </div>
    <//>`;
}

const choose = (value, change) => html`
  <select value=${String(value)} onChange=${(event) => change(Number(event.target.value))}>
    ${QOS.map((qos) => html`<option value=${qos}>${qos}</option>`)}</select>`;

function Publish() {
  const [draft, setDraft] = useState({ topic: "", payload: "", qos: 0, retain: false });
  const set = (name) => (event) => setDraft({ ...draft, [name]: event.target.value });
  const send = (event) => {
    event.preventDefault();
    attempt(() => post("/publish", draft), ({ reason, matched }) =>
      (reason === "success" ? `Published${matched ? "" : ", without a subscriber"}.` : `Published: ${reason.replaceAll("_", " ")}.`));
  };
  return html`
    <${Section} title="Publish" note="by the API: the access rules of clients do not apply">
      <form class="stack" onSubmit=${send}>
        <${Field} label="Topic"><input class="mono" required value=${draft.topic} onInput=${set("topic")} autocomplete="off" spellcheck=${false} data-search /><//>
        <${Field} label="Payload"><textarea rows="6" value=${draft.payload} onInput=${set("payload")} spellcheck=${false}></textarea><//>
        <div class="filters">
          <${Field} label="QoS">${choose(draft.qos, (qos) => setDraft({ ...draft, qos }))}<//>
          <label class="check"><input type="checkbox" checked=${draft.retain} onChange=${(event) => setDraft({ ...draft, retain: event.target.checked })} /> Retain</label>
          <button class="primary">Publish</button>
        </div>
      </form>
    <//>`;
}

// The address of the first WebSocket listener. One on all addresses is reached where this page is.
function addressOf(listeners) {
  const found = listeners?.find(({ url }) => /^wss?:/.test(url));
  if (!found) return null;
  const url = new URL(found.url.replace("//*", "//0.0.0.0"));
  const isAny = ["0.0.0.0", "[::]"].includes(url.hostname);
  const host = isAny ? location.hostname : url.hostname;
  return `${url.protocol}//${host}:${url.port}${url.pathname === "/" ? "/mqtt" : url.pathname}`;
}

function Subscribe() {
  const { data, problem } = useGet("/listeners");
  const found = addressOf(data?.items);
  return html`
    <${Section} title="Subscribe" note="as a client over WebSocket, with the rights of that client">
      <${Fault} problem=${problem} />
      ${data && (found
        ? html`<${Panel} found=${found} />`
        : html`<${Empty}>There is no WebSocket listener. Add one to the configuration: [[listeners]] url = "ws://127.0.0.1:9001"<//>`)}
    <//>`;
}

function Panel({ found }) {
  const [draft, setDraft] = useState({ url: found, username: "", password: "", filter: "#", qos: 0 });
  const [view, setView] = useState({ state: "closed", messages: [] });
  const client = useRef(null);
  const set = (name) => (event) => setDraft({ ...draft, [name]: event.target.value });
  const leave = () => {
    // Its end is announced at once, and is then that of nobody.
    const own = client.current;
    client.current = null;
    own?.end(true);
  };
  const close = () => {
    leave();
    setView((old) => ({ ...old, state: "closed" }));
  };
  useEffect(() => leave, []);
  const open = async (event) => {
    event.preventDefault();
    close();
    setView({ state: "connecting", messages: [] });
    const { default: mqtt } = await import("../vendor/mqtt.js");
    const fail = (fault, isClosed) => {
      leave();
      setView((old) => ({ ...old, state: "closed", fault, isEarly: isClosed && old.state === "connecting" }));
    };
    let own;
    try {
      own = mqtt.connect(draft.url, {
        protocolVersion: 5, clientId: `dashboard-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`,
        username: draft.username || undefined, password: draft.password || undefined,
        connectTimeout: CONNECT_MS, reconnectPeriod: 0, timerVariant: "native", clean: true,
      });
    } catch (error) {
      fail(error.message);
      return;
    }
    client.current = own;
    own.on("error", (error) => client.current === own && fail(error.message || "the connection failed"));
    own.on("close", () => client.current === own && fail("the connection was closed", true));
    own.on("connect", () => own.subscribe(draft.filter, { qos: draft.qos }, (error, granted) => {
      if (client.current !== own) return;
      const refused = granted?.find(({ qos }) => qos >= 128);
      if (error || refused) fail(error?.message || "the broker refused the subscription");
      else setView((old) => ({ ...old, state: "open", fault: null }));
    }));
    own.on("message", (topic, data, packet) => setView((old) => ({
      ...old,
      messages: kept([{ at: Date.now(), topic, data, size: data.length, packet }, ...old.messages]),
    })));
  };
  const isOpen = view.state !== "closed";
  return html`
    <form class="stack" onSubmit=${open}>
      <${Field} label="Address"><input class="mono" required value=${draft.url} onInput=${set("url")} disabled=${isOpen} /><//>
      <div class="filters">
        <${Field} label="Username"><input value=${draft.username} onInput=${set("username")} autocomplete="off" disabled=${isOpen} /><//>
        <${Field} label="Password"><input type="password" value=${draft.password} onInput=${set("password")} autocomplete="new-password" disabled=${isOpen} /><//>
      </div>
      <div class="filters">
        <${Field} label="Topic filter"><input class="mono" required value=${draft.filter} onInput=${set("filter")} disabled=${isOpen} /><//>
        <${Field} label="QoS">${choose(draft.qos, (qos) => setDraft({ ...draft, qos }))}<//>
        ${/* Two elements: one that became a submit button during its click would submit the form. */ ""}
        ${isOpen
          ? html`<button key="close" type="button" onClick=${close}>Disconnect</button>`
          : html`<button key="open" class="primary">Subscribe</button>`}
      </div>
    </form>
    ${view.fault && html`<div class="fault" role="alert"><strong>${view.fault}</strong>
      ${view.isEarly && html`<div class="fix">A listener that admits clients without a password accepts this page only
        if its origins contain <span class="mono">${location.origin}</span> ([listeners.websocket]).</div>`}</div>`}
    ${isOpen && view.messages.length === 0 && html`<${Empty}>${view.state === "open" ? "Waiting for messages." : "Connecting."}<//>`}
    <ol class="messages" aria-label="Messages">${view.messages.map((message) => html`<${Message} ...${message} />`)}</ol>`;
}

function kept(messages) {
  let sum = 0;
  return messages.slice(0, MESSAGES_MAX).map((message) => {
    sum += message.data.length;
    if (sum <= KEPT_BYTES_MAX || message.data.length <= SHOWN_BYTES_MAX) return message;
    return { ...message, data: new Uint8Array(message.data.subarray(0, SHOWN_BYTES_MAX)) };
  });
}

function Message({ at, topic, data, size, packet }) {
  const flags = [`QoS ${packet.qos}`, packet.retain && "retained", packet.dup && "duplicate", bytes(size)].filter(Boolean);
  return html`
    <li><div><span class="mono">${topic}</span> <span class="dim">${flags.join(", ")}, ${dateTime(at).slice(-8)}</span></div>
      ${data.length > 0 && html`<${Payload} data=${data} size=${size} load=${data.length === size && (() => data)} />`}</li>`;
}
