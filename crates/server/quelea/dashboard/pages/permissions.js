// What a client may do, and the rule that decides it.

import { useState } from "../vendor/hooks.js";
import { get, post } from "../api.js";
import { Badge, Facts, Fault, Field, Page, html } from "../ui.js";

const ACTIONS = ["publish", "subscribe", "receive"];
const CAUSES = {
  access_file: "a rule of the access file",
  policy_file: "a rule of the policy file",
  credential: "a rule of its credential",
  service: "no rule decides it: the authorization service is asked",
  default: "no rule grants it",
  no_rules: "there are no access rules",
  superuser: "the credential says that rules do not apply",
  accept_all_subscriptions: "each SUBSCRIBE is accepted; deliveries are checked",
  broker_topic: "clients cannot publish to topics of the broker",
  unknown_attributes: "its attributes are unknown until it is back",
};

// By `allowed`, which is null where a service is asked.
const KINDS = { true: "good", false: "bad", null: "plain" };
const WORDS = { true: "allowed", false: "denied", null: "undecided" };

// `fields` for a client that need not be connected, or `client` for one with a session.
export function Question({ client, fields = [] }) {
  const [draft, setDraft] = useState({ action: "publish", topic: "", qos: "0", retain: false });
  const [answer, setAnswer] = useState(null);
  const [problem, setProblem] = useState(null);
  const set = (name, read = (target) => target.value) => (event) =>
    setDraft({ ...draft, [name]: read(event.target) });
  const ask = async (event) => {
    event.preventDefault();
    const { action, topic, qos, retain } = draft;
    try {
      if (client) {
        const params = { client_id: client.client_id, namespace: client.namespace, action, topic, qos, retain };
        setAnswer(await get("/client/permissions", params));
      } else {
        const given = Object.fromEntries(fields.map(({ name }) => [name, draft[name]]).filter(([, value]) => value));
        if (given.attributes) given.attributes = JSON.parse(given.attributes);
        const { namespace, ...body } = given;
        setAnswer(await post("/permissions/explain", { ...body, action, topic, qos: Number(qos), retain }, { namespace }));
      }
      setProblem(null);
    } catch (error) {
      setAnswer(null);
      setProblem(error.status === undefined ? { detail: `attributes: ${error.message}`, fix: 'write a JSON object such as {"groups": ["fleet"]}' } : error);
    }
  };
  return html`
    <form class="filters" onSubmit=${ask}>
      ${fields.map(({ name, title, place, required }) => html`
        <${Field} label=${title}><input value=${draft[name] ?? ""} required=${required} placeholder=${place} onInput=${set(name)}
          autocomplete="off" spellcheck=${false} /><//>`)}
      <${Field} label="Action"><select value=${draft.action} onChange=${set("action")}>
        ${ACTIONS.map((action) => html`<option value=${action}>${action}</option>`)}</select><//>
      <${Field} label=${draft.action === "subscribe" ? "Topic filter" : "Topic"}>
        <input class="mono" required value=${draft.topic} onInput=${set("topic")} autocomplete="off" spellcheck=${false} /><//>
      <${Field} label="QoS"><select value=${draft.qos} onChange=${set("qos")}>
        ${["0", "1", "2"].map((qos) => html`<option value=${qos}>${qos}</option>`)}</select><//>
      <label class="check"><input type="checkbox" checked=${draft.retain} onChange=${set("retain", (target) => target.checked)} /> Retain</label>
      <button>Ask</button>
    </form>
    <${Fault} problem=${problem} />
    ${answer && html`<${Answer} answer=${answer} />`}`;
}

function Answer({ answer }) {
  const where = answer.file && `${answer.file}${answer.line == null ? "" : `:${answer.line}`}`;
  return html`
    <div role="status">
      <${Facts} rows=${[
        ["Decision", html`<${Badge} kind=${KINDS[answer.allowed]}>${WORDS[answer.allowed]}<//>`],
        ["Because", CAUSES[answer.decided_by] ?? answer.decided_by],
        answer.rule && ["Rule", html`<span class="mono">${answer.effect} ${answer.rule}</span>`],
        where && ["Where", html`<span class="mono">${where}</span>`],
        answer.binding && ["Binding", answer.binding],
        ["User", answer.username],
        ...answer.attributes.map(({ name, values }) => [name, values.join(", ")]),
      ]} />
    </div>`;
}

const FIELDS = [
  { name: "client_id", title: "Client ID", required: true },
  { name: "username", title: "Username" },
  { name: "address", title: "Address", place: "192.0.2.7" },
  { name: "listener", title: "Listener" },
  { name: "attributes", title: "Attributes (JSON)", place: '{"groups": ["fleet"]}' },
  { name: "namespace", title: "Namespace", place: "default" },
];

export function Permissions() {
  return html`
    <${Page} title="Permissions" note="What a client of this description may do. It need not be connected.">
      <${Question} fields=${FIELDS} />
    <//>`;
}
