// Encodes one megabyte of mixed text, and a set of odd characters and long runs, with the public
// library and with ours (o200k ranks, Kimi's split pattern); ids must be equal. Usage: node compare.mjs ROOT MODULES ENCODER WORKDIR
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { mixedText, oddText } from "./text.mjs";

const [root, modules, encoder, work] = process.argv.slice(2).map((p) => resolve(p));
const require = createRequire(join(modules, "package.json"));
const { Tiktoken } = require("tiktoken");
const ranks = readFileSync(join(modules, "node_modules/gpt-tokenizer/data/o200k_base.tiktoken"), "utf8");

// The checkpoint's pattern as published: Rust syntax, && is class intersection.
const upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]";
const lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]";
const short = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
const pattern = [
  "[\\p{Han}]+",
  `[^\\r\\n\\p{L}\\p{N}]?${upper}*${lower}+${short}`,
  `[^\\r\\n\\p{L}\\p{N}]?${upper}+${lower}*${short}`,
  "\\p{N}{1,3}",
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*",
  "\\s*[\\r\\n]+",
  "\\s+(?!\\S)",
  "\\s+",
].join("|");

// The cutting rule, written from its description: 400,000 characters, then runs of 25,000.
function cut(text) {
  const chars = Array.from(text);
  const pieces = [];
  for (let at = 0; at < chars.length; at += 400000) {
    let piece = [], run = 0, wasSpace = null;
    for (const c of chars.slice(at, at + 400000)) {
      const space = /[\s\x1c-\x1f\x85]/u.test(c) && c !== "\ufeff";
      run = space === wasSpace ? run + 1 : 1;
      wasSpace = space;
      if (run > 25000) {
        pieces.push(piece.join(""));
        piece = [];
        run = 1;
      }
      piece.push(c);
    }
    pieces.push(piece.join(""));
  }
  return pieces;
}

mkdirSync(work, { recursive: true });
writeFileSync(join(work, "tiktoken.model"), ranks);
writeFileSync(join(work, "tokenizer_config.json"), '{"added_tokens_decoder": {}}');
const theirs = new Tiktoken(ranks, {}, pattern);
const decoder = new TextDecoder();

function oracle(text) {
  const pieces = cut(text);
  let ids = [];
  let best = Infinity;
  for (let round = 0; round < 3; round++) {
    const start = process.hrtime.bigint();
    ids = pieces.map((piece) => theirs.encode(piece, [], []));
    best = Math.min(best, Number(process.hrtime.bigint() - start) / 1e9);
  }
  return { ids: ids.flatMap((a) => Array.from(a)), cuts: pieces.length, seconds: best };
}

function compare(name, text) {
  const bytes = Buffer.from(text);
  const file = join(work, name);
  writeFileSync(`${file}.txt`, bytes);
  const want = oracle(text);
  const speed = execFileSync(encoder, [work, `${file}.txt`, `${file}.ids`]).toString().trim();
  const raw = readFileSync(`${file}.ids`);
  const got = new Uint32Array(raw.buffer, raw.byteOffset, raw.length / 4);
  const mb = bytes.length / 1e6;
  console.log(`${name}: ${mb.toFixed(2)} MB, ${want.ids.length} tokens, ${want.cuts} parts`);
  console.log(`  tiktoken ${(mb / want.seconds).toFixed(1)} MB/s`);
  console.log(`  kedge    ${speed}`);
  let at = 0;
  for (let i = 0; i < Math.max(want.ids.length, got.length); i++) {
    if (want.ids[i] !== got[i]) {
      const near = JSON.stringify(decoder.decode(bytes.subarray(Math.max(0, at - 20), at + 40)));
      console.log(`  token ${i}, byte ${at}: wanted ${want.ids[i]}, got ${got[i]}, near ${near}`);
      return false;
    }
    at += theirs.decode_single_token_bytes(want.ids[i]).length;
  }
  console.log("  ids equal");
  return true;
}

const same = [compare("mixed", mixedText(root, 1 << 20)), compare("odd", oddText())];
process.exit(same.every(Boolean) ? 0 : 1);
