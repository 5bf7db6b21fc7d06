// Mixed text, the same on every run: half from files of this tree, half generated.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

// mulberry32: small, seeded, good enough to mix words.
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const letters = "etaoinshrdlcumwfgypbvkjxqz";
const kana = Array.from({ length: 83 }, (_, i) => String.fromCodePoint(0x3041 + i));
const katakana = Array.from({ length: 83 }, (_, i) => String.fromCodePoint(0x30a1 + i));
const emoji = ["😀", "👨‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤️", "🏳️‍🌈", "🧑🏿‍💻", "☃", "🤷‍♀️"];
const endings = ["'s", "'T", "'re", "'VE", "'ll", "'d", "'m", "’s", "'ſ"];
const other = [
  "Привет, мир! Как дела?", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
  "ภาษาไทยไม่เว้นวรรค", "Việt Nam", "ǅungla ǆ Ǆ", "e\u0301a\u0308", "ﬁn ﬀ", "ⅷ Ⅷ ½ ²³ ٣٤٥ 四五",
  "々〇〻⺀⼀", "ー゛゜", "a\u00a0b\u2003c\u3000d\u180ee\u200bf", "\u0085\u2028\u2029", "\t\t \t\n \r\n\r \n",
  "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚", "𠀀𠮷𪚥", "𐐷𐑊 𐌰", "<|open|>message role=\"user\"<|sep|>", "[EOS]",
];

function generated(next) {
  const pick = (list) => list[Math.floor(next() * list.length)];
  const upTo = (n) => 1 + Math.floor(next() * n);
  const word = () => {
    let w = "";
    for (let n = upTo(9); n > 0; n--) w += letters[Math.floor(next() ** 2 * letters.length)];
    const style = next();
    if (style < 0.15) w = w[0].toUpperCase() + w.slice(1);
    else if (style < 0.2) w = w.toUpperCase();
    else if (style < 0.25) w += word();
    else if (style < 0.28) w += "_" + word();
    return w + (next() < 0.05 ? pick(endings) : "");
  };
  const han = () => String.fromCodePoint(0x4e00 + Math.floor(next() ** 2 * 0x5000));
  const hangul = () => String.fromCodePoint(0xac00 + Math.floor(next() * 11172));
  const many = (n, f, gap) => Array.from({ length: upTo(n) }, f).join(gap);
  const kinds = [
    () => many(25, word, " ") + pick([". ", "!\n", "?\r\n", ", ", ";\n\n", " - "]),
    () => many(30, han, "") + pick(["，", "。", "\n", " "]) + many(6, word, " "),
    () => many(12, () => pick(kana), "") + many(5, han, "") + many(8, () => pick(katakana), "") + "。",
    () => many(8, () => many(4, hangul, ""), " ") + ".\n",
    () => many(4, () => pick(emoji), next() < 0.5 ? "" : " "),
    () => pick(other) + pick(["", " ", "\n"]),
    () => String(Math.floor(next() * 10 ** upTo(15))) + pick(["", ".5", "e-10", "%", " ", ",000"]),
    () => " ".repeat(upTo(40)) + pick(["\n", "x", "\r\n", "\t"]),
    () => "\r\n".repeat(upTo(4)) + "\t".repeat(upTo(4)) + word() + "(" + word() + ");",
    () => pick(["!", "=", "-", "*", "/", "#", "<", "\\"]).repeat(upTo(60)) + pick(["\n", "\n\n", " ", ""]),
    () => String.fromCodePoint(0x20 + Math.floor(next() * 0x2fe0)),
  ];
  return pick(kinds)();
}

function files(root) {
  const found = [];
  const walk = (dir) => {
    for (const e of readdirSync(dir, { withFileTypes: true })) {
      const path = join(dir, e.name);
      if (e.isDirectory()) walk(path);
      else if (/\.(c|h|md|mjs|json|build|ini|lua|py)$/.test(e.name)) found.push(path);
    }
  };
  for (const top of ["core", "kernels", "plugins", "scripts", "tests/unit"]) walk(join(root, top));
  return found.sort();
}

export function mixedText(root, bytes) {
  const next = random(20261129);
  const parts = [];
  let size = 0;
  const add = (s) => {
    parts.push(s);
    size += Buffer.byteLength(s);
  };
  const source = files(root).map((f) => readFileSync(f, "utf8")).join("");
  for (let at = 0; size < bytes / 2 && at < source.length; at += 4096) {
    add(source.slice(at, at + 4096));
  }
  while (size < bytes) add(generated(next));
  return parts.join("").toWellFormed();
}

// Every character up to U+1000, of the blocks with spaces and marks up to U+3200, and a sample of
// the rest of the first planes, alone and beside
// letters; runs that the cutting rule cuts, made of short pieces, since the public encoder needs
// quadratic time for long ones.
export function oddText() {
  let s = "";
  for (let c = 1; c < 0x1000; c++) s += String.fromCodePoint(c) + (c % 3 ? "" : "aA") + (c % 7 ? "" : " ");
  const dense = (c) => (c >= 0x1670 && c < 0x1690) || (c >= 0x1800 && c < 0x1820) || (c >= 0x1f00 && c < 0x3200);
  for (let c = 0x1000; c < 0x30000; c += dense(c) ? 1 : c < 0x3200 ? 16 : 37) {
    const x = String.fromCodePoint(c);
    s += ` ${x}x!${x}!   ${x}`;
  }
  s += "ab1!".repeat(13000) + " " + "字a".repeat(13000) + " ".repeat(3000) + "\n \t".repeat(9000) + "x";
  return s.toWellFormed();
}
