// Log-in by a user of the API, by the token, by a link that the broker has printed, or by the client
// certificate that the browser has shown.

import { useEffect, useState } from "../vendor/hooks.js";
import { logIn, logInByCertificate, state, takeLink } from "../api.js";
import { Fault, Field, html } from "../ui.js";

const isEncrypted = location.protocol === "https:";

export function LogIn() {
  const [code] = useState(takeLink);
  const [by, setBy] = useState("token");
  const [values, setValues] = useState({ name: "", password: "", token: "" });
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  // The form stays away until it is known that no certificate stands for it.
  const [looking, setLooking] = useState(isEncrypted && code === undefined && !state.reason);
  const byCertificate = async () => {
    setProblem(null);
    try {
      await logInByCertificate(true);
    } catch (error) {
      setProblem(error.status === 401 ? { detail: "the browser has shown no client certificate that gives a role" } : error);
    }
  };
  const run = async (secret) => {
    setBusy(true);
    setProblem(null);
    try {
      await logIn(secret);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  useEffect(() => {
    document.title = "Log in · quelea";
    if (code !== undefined) {
      run({ token: code });
    } else if (looking) {
      logInByCertificate().catch(() => false).then((is) => is || setLooking(false));
    }
  }, []);
  useEffect(() => {
    const follow = () => {
      const later = takeLink();
      if (later !== undefined) run({ token: later });
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const input = (name, type) => html`
    <input type=${type} value=${values[name]} required name=${name} autocapitalize="off" spellcheck=${false}
      autocomplete=${{ name: "username", password: "current-password", token: "off" }[name]}
      onInput=${(event) => setValues({ ...values, [name]: event.target.value })} />`;
  const tab = (name, text) => html`
    <button type="button" aria-pressed=${by === name} onClick=${() => setBy(name)}>${text}</button>`;
  if (looking) return html`<p class="wait">Loading</p>`;
  return html`
    <main class="login">
      <form onSubmit=${(event) => {
        event.preventDefault();
        run(by === "token" ? { token: values.token.trim() } : { name: values.name, password: values.password });
      }}>
        <h1>quelea</h1>
        ${state.reason && html`<p class="dim">${state.reason}</p>`}
        <div class="tabs">${tab("token", "Token")}${tab("user", "User")}</div>
        ${by === "token"
          ? html`<${Field} label="Token" hint="The first line of api.token in the data directory.">${input("token", "password")}<//>`
          : html`<${Field} label="Username">${input("name", "text")}<//>
              <${Field} label="Password">${input("password", "password")}<//>`}
        <${Fault} problem=${problem && (problem.status === 401 ? { detail: wrong(by) } : problem)} />
        <button class="primary" disabled=${busy}>Log in</button>
        ${isEncrypted && html`<button type="button" onClick=${byCertificate}>Use the client certificate</button>`}
      </form>
    </main>`;
}

const wrong = (by) => (by === "token" ? "wrong token, or a link that was used or is too old" : "wrong username or password");
