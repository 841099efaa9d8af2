// Connects the controls of the page with its lanes.

import * as address from './address.js';
import { ALGORITHMS } from './algorithms.js';
import { Card } from './card.js';
import { ServerClock } from './clock.js';
import { Lane } from './lane.js';
import { ResponsePanel } from './response.js';
import { Traffic } from './traffic.js';

const element = (id) => document.getElementById(id);
const clock = new ServerClock();
const { shown, settings } = address.read();
/** The lane and the card of each algorithm that is shown. */
const lanes = new Map();

const inOrder = () => ALGORITHMS.filter((algorithm) => lanes.has(algorithm)).map((algorithm) => lanes.get(algorithm));
const announce = (text) => (element('status').textContent = text);
const traffic = new Traffic(() => inOrder().map(({ lane }) => lane), clock, announce);
const response = new ResponsePanel(() => count('cost'));

/** Returns the number in a field: its smallest or largest, if what is in it is out of range. */
function count(id) {
  const { valueAsNumber, min, max, defaultValue } = element(id);
  if (Number.isNaN(valueAsNumber)) return Number(defaultValue);
  return Math.min(Math.max(valueAsNumber, Number(min)), Number(max));
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
    announce(`Sending ${count('rate')} requests per second to each limit.`);
    traffic.startSteady(() => ({ perSecond: count('rate'), cost: count('cost') }));
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

element('one').addEventListener('click', () => traffic.burst(1, count('cost')));
element('burst').addEventListener('click', () => traffic.burst(count('size'), count('cost')));
element('edge').addEventListener('click', () => traffic.acrossEdge(count('size'), count('cost'), windowPeriod()));
element('steady').addEventListener('click', () => setSteady(!traffic.isSteady));
element('again').addEventListener('click', async () => {
  traffic.stop();
  setSteady(false);
  await Promise.all(inOrder().map(({ lane }) => lane.forget()));
  announce('The server has forgotten your requests.');
});
element('cost').addEventListener('input', () => response.draw());
element('traffic').addEventListener('submit', (event) => event.preventDefault());
matchMedia('(max-width: 40rem)').addEventListener('change', arrange);

// Only by hand: the page itself replaces its address without this event.
addEventListener('hashchange', () => location.reload());

addChoices();
shown.forEach(show);
arrange();

const isCalm = matchMedia('(prefers-reduced-motion: reduce)');
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
