// Requests to the server of the page. The browser sends the login. Where the address of the page has a token behind `#`,
// which browsers send to no server, the requests have it as a header. A POST has a header that pages of other sites
// cannot send.

const PREFIX = "/_penstock";

const token = takeToken();

/** Return the token of the address, and hide it there. The tab keeps it, so that the page can be loaded again. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem("token");
}

const withToken = (headers) => (token === null ? headers : { ...headers, authorization: `Bearer ${token}` });

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function getJson(path) {
  return read(await fetch(PREFIX + path, { headers: withToken({ accept: "application/json" }) }));
}

export async function postJson(path, body) {
  const headers = withToken({ "content-type": "application/json", "x-penstock-request": "dashboard" });
  return read(await fetch(PREFIX + path, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function read(response) {
  if (response.ok) return response.json();
  throw await refuse(response);
}

async function refuse(response) {
  return new Refused(response.status, explain(response.status, await response.text()));
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

/** Yield the data of server-sent events as objects. EventSource cannot send the header of the token. */
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}

/**
 * Follow the state of a bucket. `onDocument` gets each document, `onLost` a sentence when the server is lost.
 * A document that has only a `problem` tells why there is no newer one.
 * Returns a function that ends it.
 */
export function followState(bucket, onDocument, onLost) {
  let request = null, timer = 0, isOver = false;
  const query = bucket === null ? "" : `?bucket=${encodeURIComponent(bucket)}`;

  function restart(sentence, after) {
    request.abort();
    clearTimeout(timer);
    if (isOver) return;
    if (sentence) onLost(sentence);
    timer = setTimeout(open, after);
  }

  // A server that vanished without a word sends nothing: the silence is all that shows it.
  function expect(wait, sentence) {
    clearTimeout(timer);
    timer = setTimeout(() => restart(sentence, 500), wait);
  }

  async function open() {
    const own = request = new AbortController();
    expect(15000, "The server does not answer. Trying again.");
    let sentence = "";
    try {
      const headers = withToken({ accept: "text/event-stream" });
      const response = await fetch(`${PREFIX}/events${query}`, { headers, signal: own.signal, cache: "no-store" });
      if (!response.ok) throw await refuse(response);
      for await (const found of readEvents(response.body)) {
        expect(3000 + 3000 * found.seconds, "The server sends nothing. Trying again.");
        if (found.problem) onLost(found.problem);
        else onDocument(found);
      }
    } catch (error) {
      sentence = error instanceof Refused ? `The server refuses: ${error.message}.` : "The server does not answer. Trying again.";
      if (!(error instanceof Refused || error instanceof TypeError || error.name === "AbortError")) throw error;
    }
    if (own === request && !own.signal.aborted) restart(sentence, 500);
  }

  open();
  return () => { isOver = true; request.abort(); clearTimeout(timer); };
}
