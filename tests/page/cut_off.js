// Returns what does not fit: beyond the sides of the screen, of its own box, or of its chart.

const width = document.documentElement.clientWidth;
const cut = [];
for (const element of document.querySelectorAll('body *')) {
  if (element.closest('template, .visually-hidden') || !element.checkVisibility()) continue;
  // Marks scroll out of a chart, its labels stay.
  if ((element instanceof SVGElement && element.tagName !== 'text') || element.matches('.plot')) continue;
  const { left, right } = element.getBoundingClientRect();
  const box = element.closest('.chart')?.getBoundingClientRect() ?? { left: 0, right: width };
  const isOutside = left < box.left - 0.5 || right > box.right + 0.5;
  const overflows = element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1;
  if (isOutside || overflows) cut.push([element.tagName, element.className, element.textContent.trim().slice(0, 40)]);
}
return cut.slice(0, 20);
