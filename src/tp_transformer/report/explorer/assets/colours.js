// Colours as [red, green, blue]; what is drawn on a canvas or saved needs them as numbers.

const THEMES = {
  light: {
    paper: [255, 255, 255],
    ink: [28, 30, 33],
    faint: [120, 126, 134],
    accent: [11, 87, 164],
    warm: [186, 84, 16],
  },
  dark: {
    paper: [21, 24, 28],
    ink: [230, 232, 235],
    faint: [144, 151, 160],
    accent: [112, 178, 255],
    warm: [255, 160, 92],
  },
};

let currentTheme = "light";
let weightColours = [];

// The theme chosen on the page, or else the one that the browser prefers.
function chooseTheme(name) {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  currentTheme = name || (isDark ? "dark" : "light");
  document.documentElement.dataset.theme = currentTheme;
  const { paper, accent } = theme();
  weightColours = Array.from({ length: 257 }, (_, i) => mix(paper, accent, Math.sqrt(i / 256)));
}

function theme() {
  return THEMES[currentTheme];
}

function mix(from, to, share) {
  return from.map((value, i) => Math.round(value + (to[i] - value) * share));
}

function css(colour) {
  return `#${colour.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

// The colour of an attention weight: its square root, so that small weights are seen.
function weightColour(weight) {
  return weightColours[Math.round(256 * Math.min(1, weight))];
}

// The colour of a difference of two weights.
function differenceColour(difference) {
  const { paper, accent, warm } = theme();
  return mix(paper, difference > 0 ? accent : warm, Math.sqrt(Math.min(1, Math.abs(difference))));
}

const SIDE_HUES = { numerator: 205, denominator: 41 };

function sideOf(name) {
  return Object.keys(SIDE_HUES).find((side) => (name || "").split(", ").includes(side));
}

// Cluster colours by their names: shades of blue for numerators, of gold for denominators, of grey
// for others. If no name has a side: hues around the circle, in two lightnesses if there are many.
function clusterColour(cluster, names) {
  const base = currentTheme === "dark" ? 0.62 : 0.5;
  if (!names.some(sideOf)) {
    const light = base + (names.length > 10 && cluster % 2 ? 0.13 : 0);
    return fromHsl((cluster * 360) / names.length + 25, 0.52, light);
  }
  const side = sideOf(names[cluster]);
  const alike = names.map((_, c) => c).filter((c) => sideOf(names[c]) === side);
  const shade = base - 0.1 + (0.25 * alike.indexOf(cluster)) / Math.max(1, alike.length - 1);
  return fromHsl(SIDE_HUES[side] ?? 0, side ? 0.62 : 0, shade);
}

function fromHsl(hue, saturation, lightness) {
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    const reach = saturation * Math.min(lightness, 1 - lightness);
    return Math.round(255 * (lightness - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}
