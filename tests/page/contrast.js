// Returns the texts whose contrast with their background is below 4.5:1 (WCAG 2.2, level AA).

const channels = (color) => color.match(/[\d.]+/g).map(Number);
const luminance = ([red, green, blue]) => {
  const linear = [red, green, blue].map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const background = (element) => {
  for (let parent = element; parent; parent = parent.parentElement) {
    const color = channels(getComputedStyle(parent).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  throw new Error('no background');
};
const pale = [];
let seen = 0;
for (const element of document.querySelectorAll('body *')) {
  const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  if (!hasText || element.closest('template') || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const color = channels(element instanceof SVGElement ? style.fill : style.color);
  const [one, other] = [luminance(color), luminance(background(element))];
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  seen += 1;
  if (ratio < 4.5) pale.push([element.textContent.trim().slice(0, 40), Math.round(ratio * 100) / 100]);
}
if (seen < 50) pale.push(['too few texts', seen]);
return pale;
