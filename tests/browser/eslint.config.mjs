// Looks over the scripts and styles of the management pages, and brings them into the house's form
// (`make fmt`). Names and types are TypeScript's business (`tsconfig.json`).
import css from "@eslint/css";
import js from "@eslint/js";
import stylistic from "@stylistic/eslint-plugin";

const PAGES = "lavinmq/http/ui/static/";

export default [
  { ignores: [`${PAGES}vendor/`] },
  {
    files: [`${PAGES}**/*.js`],
    plugins: { "@stylistic": stylistic },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...js.configs.recommended.rules,
      "no-undef": "off",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "array-callback-return": "error",
      "eqeqeq": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "no-restricted-properties": ["error",
        { property: "innerHTML", message: "Text only ever becomes text." },
        { property: "outerHTML", message: "Text only ever becomes text." },
        { property: "insertAdjacentHTML", message: "Text only ever becomes text." }],
      "@stylistic/arrow-parens": "error",
      "@stylistic/brace-style": ["error", "1tbs"],
      "@stylistic/comma-dangle": ["error", "only-multiline"],
      "@stylistic/comma-spacing": "error",
      "@stylistic/eol-last": "error",
      "@stylistic/indent": ["error", 2, { SwitchCase: 1, ignoredNodes: ["CallExpression *", "ConditionalExpression *"] }],
      "@stylistic/keyword-spacing": "error",
      "@stylistic/max-len": ["error", { code: 180, ignoreStrings: true }],
      "@stylistic/no-multiple-empty-lines": ["error", { max: 1 }],
      "@stylistic/no-trailing-spaces": "error",
      "@stylistic/object-curly-spacing": ["error", "always"],
      "@stylistic/quotes": ["error", "double", { avoidEscape: true }],
      "@stylistic/semi": "error",
      "@stylistic/space-before-blocks": "error",
      "@stylistic/space-infix-ops": "error",
    },
  },
  {
    files: [`${PAGES}**/*.css`],
    plugins: { css },
    language: "css/css",
    rules: {
      ...css.configs.recommended.rules,
      "css/no-important": "off", // what a role may not see is hidden whatever else is said
      "css/use-baseline": "off", // browsers that know ES2023, as decision 0060 says
    },
  },
];
