// Requests to the node. The browser sends the login; a POST has a header that pages of other sites cannot send.

const PREFIX = "/_penstock";

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function getJson(path) {
  return read(await fetch(PREFIX + path, { headers: { accept: "application/json" } }));
}

export async function postJson(path, body) {
  const headers = { "content-type": "application/json", "x-penstock-request": "dashboard" };
  return read(await fetch(PREFIX + path, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function read(response) {
  if (response.ok) return response.json();
  const text = await response.text();
  throw new Refused(response.status, explain(response.status, text));
}

function explain(status, text) {
  try {
    const found = JSON.parse(text);
    if (found.errors) return Object.values(found.errors).join("; ");
    if (found.permissions) return `your user lacks the privilege ${found.permissions.join(", ")}`;
  } catch { /* it is plain text */ }
  return text.trim() || `status ${status}`;
}

export const bucketPath = (bucket) => `/buckets/${encodeURIComponent(bucket)}`;

/**
 * Follow the state of a bucket. `onDocument` gets each document, `onLost` a sentence when the node is lost.
 * Returns a function that ends it.
 */
export function followState(bucket, onDocument, onLost) {
  let source = null, timer = 0, isOver = false, wait = 2000;
  const query = bucket === null ? "" : `?bucket=${encodeURIComponent(bucket)}`;

  function restart(sentence, after) {
    source?.close();
    clearTimeout(timer);
    if (isOver) return;
    if (sentence) onLost(sentence);
    timer = setTimeout(open, after);
  }

  // A node that vanished without a word sends nothing: the silence is all that shows it.
  function expect() {
    clearTimeout(timer);
    timer = setTimeout(() => restart("The node sends nothing. Trying again.", 500), wait);
  }

  function open() {
    source = new EventSource(`${PREFIX}/events${query}`);
    source.onmessage = (event) => {
      const found = JSON.parse(event.data);
      wait = 3000 + 3000 * found.seconds;
      expect();
      onDocument(found);
    };
    source.onerror = async () => {
      source.close();
      clearTimeout(timer);
      let sentence = "The node does not answer. Trying again.";
      try {
        await getJson(`/state${query}`);
        sentence = "";
      } catch (error) {
        if (error instanceof Refused) sentence = `The node refuses: ${error.message}.`;
      }
      restart(sentence, 500);
    };
    timer = setTimeout(() => restart("The node does not answer. Trying again.", 500), 15000);
  }

  open();
  return () => { isOver = true; source?.close(); clearTimeout(timer); };
}
