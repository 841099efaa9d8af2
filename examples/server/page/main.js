// Connects the controls of the page with its lanes.

import * as address from './address.js';
import { ALGORITHMS } from './algorithms.js';
import { Card, READABLE } from './card.js';
import { ServerClock } from './clock.js';
import { Comparison } from './comparison.js';
import { Connection } from './connection.js';
import { Lane } from './lane.js';
import { Playback } from './playback.js';
import { ResponsePanel } from './response.js';
import { Story } from './story.js';
import { CLIENTS, Traffic } from './traffic.js';

const element = (id) => document.getElementById(id);
const isCalm = matchMedia('(prefers-reduced-motion: reduce)');
const isNarrow = matchMedia('(max-width: 40rem)');
const clock = new ServerClock();
const playback = new Playback(clock);
const connection = new Connection(clock);
const isPlain = location.hash.length < 2;
const { shown, settings, client } = address.read();
/** The lane and the card of each algorithm that is shown. */
const lanes = new Map();

const inOrder = () => ALGORITHMS.filter((algorithm) => lanes.has(algorithm)).map((algorithm) => lanes.get(algorithm));
/** Says what happens, instead of the story. */
const announce = (text, isError = false) => {
  story.isSpeaking = false;
  say(text, isError);
};
const say = (text, isError = false) => {
  if (element('status').textContent !== text) element('status').textContent = text;
  element('status').classList.toggle('error', isError);
};
const traffic = new Traffic(() => inOrder().map(({ lane }) => lane), clock, announce);
const story = new Story(traffic, clock, playback, conclusion);
const comparison = new Comparison();
const response = new ResponsePanel(() => number('cost'));
/** The client that sends, and what stops it. */
let sender = null;

/** Compares what passed at most, at the end of the story. */
function conclusion() {
  const peaks = inOrder().map(({ lane }) => `${lane.algorithm.title} ${lane.admissions.peak(Infinity)}`);
  return `At most in a period: ${peaks.join(', ')}. Point at a request to see why.`;
}

const number = (id) => element(id).valueAsNumber;
const invalidField = () => element('traffic').querySelector('input:invalid');

/** Returns whether the traffic can be sent, and reports the first field that prevents it. */
function isValid() {
  const field = invalidField();
  if (!field) return true;
  announce(`Nothing was sent. ${field.labels[0].firstChild.data.trim()}: ${field.validationMessage}`, true);
  element('own').open = true;
  field.focus();
  return false;
}

/** Scrolls to the first lane unless a whole chart is in view. Buttons cover the bottom of a phone's screen. */
function showChart() {
  const actions = document.querySelector('.actions');
  const bottom = getComputedStyle(actions).position === 'fixed' ? actions.getBoundingClientRect().top : innerHeight;
  const isVisible = ({ element }) => {
    const chart = element.querySelector('.chart').getBoundingClientRect();
    return chart.top >= 0 && chart.bottom <= bottom;
  };
  const cards = inOrder().map(({ card }) => card);
  if (!cards.some(isVisible)) cards[0]?.element.scrollIntoView({ behavior: isCalm.matches ? 'auto' : 'smooth' });
}

function show(algorithm) {
  const lane = new Lane(algorithm, settings.get(algorithm), clock, connection);
  const card = new Card(lane, connection, playback, (changed) => {
    change(() => {
      settings.set(algorithm, changed);
      lane.change(changed);
    });
  });
  lanes.set(algorithm, { lane, card });
  lane.peek();
}

function hide(algorithm) {
  const { lane, card } = lanes.get(algorithm);
  lane.close();
  card.element.remove();
  lanes.delete(algorithm);
}

/** Puts the cards in order, lets all charts show the same span, and writes the address. */
function arrange() {
  const container = element('lanes');
  inOrder().forEach(({ card }, index) => {
    if (container.children[index] !== card.element) container.insertBefore(card.element, container.children[index]);
  });
  const longest = Math.max(1, ...inOrder().map(({ lane }) => lane.rate.seconds));
  const periods = isNarrow.matches ? 2.5 : 3.5;
  inOrder().forEach(({ card }) => card.chart.show(longest * 1000, periods));
  element('empty').hidden = lanes.size > 0;
  comparison.show(inOrder().map(({ lane }) => lane));
  response.offer(inOrder().map(({ lane }) => lane));
  writeAddress();
}

function writeAddress() {
  address.write(new Set(ALGORITHMS.filter((algorithm) => lanes.has(algorithm))), settings, sender?.client);
}

function addChoices() {
  for (const algorithm of ALGORITHMS) {
    const label = document.createElement('label');
    const input = Object.assign(document.createElement('input'), { type: 'checkbox', checked: shown.has(algorithm) });
    input.name = algorithm.name;
    input.addEventListener('change', () => change(() => (input.checked ? show(algorithm) : hide(algorithm))));
    label.append(input, algorithm.title);
    element('choices').append(label);
  }
}

/** The button of each client. */
const buttons = new Map();

function addClients() {
  for (const client of CLIENTS) {
    const button = Object.assign(document.createElement('button'), { type: 'button', textContent: client.title });
    button.name = client.name;
    button.setAttribute('aria-pressed', false);
    button.addEventListener('click', () => toggle(client));
    buttons.set(client, button);
    element('clients').append(button);
  }
}

/** The requests at the rate that the fields say. */
const STEADY = {
  name: 'steady',
  describe: () => `Sending ${number('rate')} requests per second to each limit.`,
  run: (traffic, { signal }) =>
    traffic.steady(() => !invalidField() && { perSecond: number('rate'), cost: number('cost') }, signal),
};
buttons.set(STEADY, element('steady'));

/** Stops the client that sends. */
function stopSender() {
  if (!sender) return;
  sender.aborter.abort();
  buttons.get(sender.client).setAttribute('aria-pressed', false);
  element('steady').textContent = 'Steady';
  sender = null;
  announce('');
  writeAddress();
}

/** Lets a client send, instead of another, or stops it. */
function toggle(client) {
  const isRunning = sender?.client === client;
  stopSender();
  const rate = inOrder()[0]?.lane.rate;
  if (isRunning || !rate || (client === STEADY && !isValid())) return;
  traffic.stop();
  present();
  sender = { client, aborter: new AbortController() };
  buttons.get(client).setAttribute('aria-pressed', true);
  if (client === STEADY) element('steady').textContent = 'Stop';
  const text = client.describe(rate);
  announce(text[0].toUpperCase() + text.slice(1));
  const { signal } = sender.aborter;
  const shown = inOrder().map(({ lane }) => lane);
  // Each client finds unused limits, so that its figures are its own.
  const ready = client === STEADY ? Promise.resolve() : Promise.all(shown.map((lane) => lane.forget()));
  ready.then(() => signal.aborted || client.run(traffic, { ...rate, lanes: shown, signal }));
  showChart();
  writeAddress();
}

/** Ends the story, and shows the present. */
function present() {
  story.forget();
  playback.live();
}

/** Does what changes the lanes, and lets the client that sends begin anew with them. */
function change(update) {
  const client = sender?.client;
  stopSender();
  present();
  update();
  arrange();
  if (client) toggle(client);
}

/** The period of the window whose edge a burst is sent across, in milliseconds. */
function windowPeriod() {
  const algorithm = ALGORITHMS.find(({ name }) => name === 'fixed-window');
  return settings.get(algorithm).period * 1000;
}

const senders = {
  one: () => traffic.burst(1, number('cost')),
  burst: () => traffic.burst(number('size'), number('cost')),
  edge: () => traffic.acrossEdge(number('size'), number('cost'), windowPeriod()),
};
for (const [id, send] of Object.entries(senders)) {
  element(id).addEventListener('click', () => {
    if (!isValid()) return;
    announce('Sending…');
    present();
    send();
    showChart();
  });
}
element('steady').addEventListener('click', () => toggle(STEADY));
element('again').addEventListener('click', async () => {
  traffic.stop();
  stopSender();
  present();
  const done = await Promise.all(inOrder().map(({ lane }) => lane.forget()));
  announce(done.every(Boolean) ? 'The server has forgotten your requests.' : 'The server does not answer.');
});
element('traffic').addEventListener('input', () => {
  if (element('status').classList.contains('error')) announce('');
  if (sender?.client === STEADY) isValid();
  response.draw();
  writeAddress();
});
element('traffic').addEventListener('submit', (event) => event.preventDefault());
isNarrow.addEventListener('change', arrange);

// The story.

function drawStory(now) {
  if (story.isSpeaking && story.line(now)) say(story.line(now));
  element('play').textContent = story.isPlaying ? 'Playing' : story.isTold ? 'Replay' : 'Play';
  element('play').disabled = story.isPlaying;
  element('pause').textContent = playback.isStill ? 'Continue' : 'Pause';
  element('slow').setAttribute('aria-pressed', playback.isSlow);
}

function tell() {
  const { tokens, seconds } = inOrder()[0]?.lane.rate ?? {};
  if (!(tokens <= 30 && seconds >= 2 && seconds <= 10)) {
    return announce('The story needs an algorithm with a limit of at most 30 tokens in 2 to 10 seconds.');
  }
  traffic.stop();
  stopSender();
  story.tell(inOrder().map(({ lane }) => lane));
}

element('play').addEventListener('click', () => (story.isTold ? story.replay() : tell()));
element('pause').addEventListener('click', () => playback.pause(!playback.isStill));
element('slow').addEventListener('click', () => playback.slow(!playback.isSlow));

// The first input of a person ends the story, except that on its own controls, and keys that only move the focus.
const interrupt = ({ target, key }) => {
  if (['Tab', 'Shift', 'Control', 'Alt', 'Meta'].includes(key)) return;
  if (target instanceof Element && target.closest('.story, .chart')) return;
  if (story.isPlaying) {
    story.forget();
    playback.live();
    announce('The story has stopped.');
  }
};
for (const type of ['pointerdown', 'keydown']) addEventListener(type, interrupt, { capture: true });

// Without motion, what is drawn only now and then follows an input at once.
for (const type of ['click', 'keydown', 'pointermove']) addEventListener(type, () => (drawnAt = -Infinity));

// Only by hand: the page itself replaces its address without this event.
addEventListener('hashchange', () => location.reload());

addChoices();
addClients();
shown.forEach(show);
const begun = [STEADY, ...CLIENTS].find(({ name }) => name === client);
arrange();
if (begun) toggle(begun);
else if (isPlain && !isCalm.matches) tell();
else announce('Press Play for the story, choose a client, or send a burst.');

let [drawnAt, writtenAt] = [-Infinity, -Infinity];
requestAnimationFrame(function draw(time) {
  // Without motion, the charts advance in steps.
  if (!isCalm.matches || time - drawnAt > 1000) {
    drawnAt = time;
    const now = playback.now();
    document.body.classList.toggle('is-stale', connection.between(now, now + 1).length > 0);
    inOrder().forEach(({ card }) => card.draw(now));
    drawStory(now);
    if (time - writtenAt > READABLE) {
      writtenAt = time;
      comparison.draw(now);
      response.draw();
    }
  }
  requestAnimationFrame(draw);
});
