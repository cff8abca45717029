// The texts of this page's scripts, in the language that the page came in; placeholders are filled here.
const texts = JSON.parse(document.getElementById("strings")?.textContent ?? "{}");

export function t(key, values = {}) {
  const text = texts[key];
  if (text === undefined) throw new Error(`no text is called ${key}`);
  return text.replace(/\{(\w+)\}/g, (_, name) => {
    if (values[name] === undefined) throw new Error(`${key} lacks ${name}`);
    return values[name];
  });
}

export const hasText = (key) => texts[key] !== undefined;
