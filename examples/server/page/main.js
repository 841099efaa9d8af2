// Connects the controls of the page with its lanes.

import * as address from './address.js';
import { ALGORITHMS } from './algorithms.js';
import { Card } from './card.js';
import { ServerClock } from './clock.js';
import { Lane } from './lane.js';
import { ResponsePanel } from './response.js';
import { Traffic } from './traffic.js';

const element = (id) => document.getElementById(id);
const isCalm = matchMedia('(prefers-reduced-motion: reduce)');
const clock = new ServerClock();
const { shown, settings } = address.read();
/** The lane and the card of each algorithm that is shown. */
const lanes = new Map();

const inOrder = () => ALGORITHMS.filter((algorithm) => lanes.has(algorithm)).map((algorithm) => lanes.get(algorithm));
const announce = (text, isError = false) => {
  element('status').textContent = text;
  element('status').classList.toggle('error', isError);
};
const traffic = new Traffic(() => inOrder().map(({ lane }) => lane), clock, announce);
const response = new ResponsePanel(() => element('cost').value);

const number = (id) => element(id).valueAsNumber;
const invalidField = () => element('traffic').querySelector('input:invalid');

/** Returns whether the traffic can be sent, and reports the first field that prevents it. */
function isValid() {
  const field = invalidField();
  if (!field) return true;
  announce(`Nothing was sent. ${field.labels[0].firstChild.data.trim()}: ${field.validationMessage}`, true);
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
  const lane = new Lane(algorithm, settings.get(algorithm), clock);
  const card = new Card(lane, clock.now(), (changed) => {
    settings.set(algorithm, changed);
    lane.change(changed);
    arrange();
  });
  lane.addEventListener('change', () => response.draw());
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
  const periods = matchMedia('(max-width: 40rem)').matches ? 2 : 3;
  inOrder().forEach(({ card }) => (card.chart.span = longest * periods * 1000));
  element('empty').hidden = lanes.size > 0;
  response.offer(inOrder().map(({ lane }) => lane));
  address.write(new Set(ALGORITHMS.filter((algorithm) => lanes.has(algorithm))), settings);
}

function addChoices() {
  for (const algorithm of ALGORITHMS) {
    const label = document.createElement('label');
    const input = Object.assign(document.createElement('input'), { type: 'checkbox', checked: shown.has(algorithm) });
    input.name = algorithm.name;
    input.addEventListener('change', () => {
      if (input.checked) show(algorithm);
      else hide(algorithm);
      arrange();
    });
    label.append(input, algorithm.title);
    element('choices').append(label);
  }
}

function setSteady(isOn) {
  element('steady').setAttribute('aria-pressed', isOn);
  element('steady').textContent = isOn ? 'Stop' : 'Steady';
  if (isOn) {
    announce(`Sending ${number('rate')} requests per second to each limit.`);
    traffic.startSteady(() => !invalidField() && { perSecond: number('rate'), cost: number('cost') });
  } else {
    announce('');
    traffic.stopSteady();
  }
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
  steady: () => setSteady(true),
};
for (const [id, send] of Object.entries(senders)) {
  element(id).addEventListener('click', () => {
    if (id === 'steady' && traffic.isSteady) return setSteady(false);
    if (!isValid()) return;
    announce('Sending…');
    send();
    showChart();
  });
}
element('again').addEventListener('click', async () => {
  traffic.stop();
  setSteady(false);
  await Promise.all(inOrder().map(({ lane }) => lane.forget()));
  announce('The server has forgotten your requests.');
});
element('traffic').addEventListener('input', () => {
  if (element('status').classList.contains('error')) announce('');
  if (traffic.isSteady) isValid();
  response.draw();
});
element('traffic').addEventListener('submit', (event) => event.preventDefault());
matchMedia('(max-width: 40rem)').addEventListener('change', arrange);

// Only by hand: the page itself replaces its address without this event.
addEventListener('hashchange', () => location.reload());

addChoices();
shown.forEach(show);
arrange();

let drawnAt = -Infinity;
requestAnimationFrame(function draw(time) {
  // Without motion, the charts advance in steps.
  if (!isCalm.matches || time - drawnAt > 1000) {
    drawnAt = time;
    const now = clock.now();
    inOrder().forEach(({ card }) => card.draw(now));
  }
  requestAnimationFrame(draw);
});
