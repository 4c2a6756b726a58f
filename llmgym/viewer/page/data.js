// The data of the page: the index, and conversations and tokens, which are unpacked when they are shown.

let index = null; // see collect.py
let col = null; // its columns
let count = 0;
const starts = new Map(); // chunk -> number of its first episode
const unpacked = new Map(); // the chunks used last
const KEPT_CHUNKS = 64;

async function unpack(id) {
  const binary = atob(byId(id).textContent);
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function loadIndex() {
  index = await unpack("index");
  col = index.columns;
  count = col.task.length;
  col.chunk.forEach((chunk, episode) => {
    if (!starts.has(chunk)) starts.set(chunk, episode);
  });
  index.vocabulary = new Map(index.vocabulary);
}

async function loadChunk(chunk) {
  if (!byId("chunk-" + chunk)) return null;
  let bodies = unpacked.get(chunk);
  if (!bodies) bodies = await unpack("chunk-" + chunk);
  unpacked.delete(chunk);
  unpacked.set(chunk, bodies);
  if (unpacked.size > KEPT_CHUNKS) unpacked.delete(unpacked.keys().next().value);
  return bodies;
}

// The conversation of an episode, or null when it was left out of the file.
async function loadBody(episode) {
  const bodies = await loadChunk(col.chunk[episode]);
  return bodies && bodies[episode - starts.get(col.chunk[episode])];
}

const task = (episode) => index.tasks[col.task[episode]];
const stop = (episode) => index.stops[col.stop[episode]];
const value = (name, episode) => (col[name] ? col[name][episode] : null);
const phase = (episode) => index.phases[col.phase[episode]];
const isTraining = (episode) => phase(episode).startsWith("train");

// All texts of a conversation, for the search.
function wordsOf(body) {
  const parts = [body.stop_detail, body.close_error];
  const add = (message) => {
    if (!message) return;
    parts.push(message.content, message.reasoning_content);
    for (const call of message.tool_calls || []) parts.push(call.name, call.arguments);
  };
  body.initial_messages.forEach(add);
  for (const turn of body.turns) {
    add(turn.message);
    parts.push(turn.raw_text, turn.failure);
    turn.observation.forEach(add);
  }
  return parts.filter(Boolean).join("\n");
}
