// A backup of the data directory, to a file of the browser.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { download } from "../api.js";
import { bytes } from "../format.js";
import { Empty, Fault, Page, Section, html, useGet } from "../ui.js";

const LIVE_MS = 5000;
const SHOWN_MS = 250;

export function Backup() {
  const { data, problem } = useGet("/logs", undefined, LIVE_MS);
  const [state, setState] = useState({});
  const running = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  const start = async () => {
    const stop = new AbortController();
    running.current = stop;
    try {
      const name = `quelea-${new Date().toISOString().replace(/[:.]/g, "")}.tar`;
      const target = await targetOf(name);
      setState({ total: 0 });
      let [total, shown] = [0, 0];
      await download("POST", "/backup", async (part) => {
        await target.put(part);
        total += part.length;
        if (performance.now() - shown < SHOWN_MS) return;
        shown = performance.now();
        setState({ total });
      }, stop.signal);
      await target.end();
      setState({ done: `${name}, ${bytes(total)}` });
    } catch (error) {
      setState(error.name === "AbortError" ? {} : { problem: problemOf(error) });
    }
    running.current = null;
  };
  const rows = data?.items ?? [];
  const used = rows.reduce((sum, row) => sum + (row.figures.find(({ name }) => name === "used_bytes")?.value ?? 0), 0);
  const isRunning = state.total !== undefined;
  return html`
    <${Page} title="Backup" note="All that this node keeps on disk, as a tar archive.">
      <${Fault} problem=${problem || state.problem} />
      ${data && rows.length === 0 && html`<${Empty}>Nothing is stored: the durability level is memory.<//>`}
      ${rows.length > 0 && html`
        <${Section} title="Download">
          <p>It has the sessions, queued and retained messages, bans and names of namespaces, and not the configuration and its files.</p>
          <p>It also has the secret of the password check. Protect it like the data directory.</p>
          <p class="filters">
            ${isRunning
              ? html`<button onClick=${() => running.current?.abort()}>Stop</button>
                <span role="status">${bytes(state.total)} received. Stay on this page.</span>`
              : html`<button class="primary" onClick=${start}>Download a backup</button>
                ${state.done && html`<span role="status">Whole: ${state.done}</span>`}`}
          </p>
          <p class="dim">The logs have ${bytes(used)}; until the download ends they reclaim no space. From a shell: <code>quelea ctl backup monday.tar</code></p>
        <//>
        <${Section} title="Restore">
          <pre>${RESTORE}</pre>
        <//>`}
    <//>`;
}

const RESTORE = `systemctl stop quelea
mv /var/lib/quelea /var/lib/quelea.old
mkdir -m 700 /var/lib/quelea
tar -xf quelea-….tar -C /var/lib/quelea
quelea log check /var/lib/quelea
chown -R quelea: /var/lib/quelea
systemctl start quelea`;

const problemOf = (error) => (error.detail ? error : {
  detail: `the backup broke off: ${error.message}`,
  fix: "what was saved is no backup; see the log of the broker, and start again",
});

// A browser that cannot write to a file keeps the archive in memory until it is whole.
async function targetOf(name) {
  if (window.showSaveFilePicker) {
    const file = await window.showSaveFilePicker({ suggestedName: name });
    const out = await file.createWritable();
    return { put: (part) => out.write(part), end: () => out.close() };
  }
  const parts = [];
  return {
    put: (part) => parts.push(part),
    end: () => {
      const url = URL.createObjectURL(new Blob(parts, { type: "application/x-tar" }));
      Object.assign(document.createElement("a"), { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    },
  };
}
