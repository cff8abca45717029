// Copies the pinned browser packages into static/vendor under content-hashed names, each with its gzip and brotli twin.
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const modules = join(here, "..", "node_modules");
const target = join(here, "vendor");

const FONTS = [
  ["inter.woff2", "@fontsource-variable/inter/files/inter-latin-wght-normal.woff2", "Inter Variable", "100 900"],
  [
    "jetbrains-mono.woff2",
    "@fontsource-variable/jetbrains-mono/files/jetbrains-mono-latin-wght-normal.woff2",
    "JetBrains Mono Variable",
    "100 800",
  ],
];
const SCRIPTS = [
  ["htmx.js", "htmx.org/dist/htmx.min.js"],
  ["plotly.js", "plotly.js-cartesian-dist-min/plotly-cartesian.min.js"],
];
// The tests inject it; pages never load it, and an installation without development packages has none.
const OPTIONAL = [["axe.js", "axe-core/axe.min.js"]];

const manifest = {};

function publish(name, bytes) {
  const hash = createHash("sha256").update(bytes).digest("hex").slice(0, 12);
  const dot = name.lastIndexOf(".");
  const file = `${name.slice(0, dot)}.${hash}${name.slice(dot)}`;
  writeFileSync(join(target, file), bytes);
  if (!name.endsWith(".woff2")) {
    const level = { [constants.BROTLI_PARAM_QUALITY]: 9 };
    writeFileSync(join(target, `${file}.br`), brotliCompressSync(bytes, { params: level }));
    writeFileSync(join(target, `${file}.gz`), gzipSync(bytes, { level: 9 }));
  }
  manifest[name] = file;
  return file;
}

rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });

const faces = FONTS.map(([name, path, family, weights]) => {
  const file = publish(name, readFileSync(join(modules, path)));
  return (
    `@font-face{font-family:"${family}";src:url("${file}") format("woff2");` +
    `font-weight:${weights};font-display:swap}\n`
  );
});
publish("fonts.css", Buffer.from(faces.join("")));
for (const [name, path] of SCRIPTS) publish(name, readFileSync(join(modules, path)));
for (const [name, path] of OPTIONAL) {
  if (existsSync(join(modules, path))) publish(name, readFileSync(join(modules, path)));
}
writeFileSync(join(target, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
console.log(`built ${Object.keys(manifest).length} files into static/vendor`);
