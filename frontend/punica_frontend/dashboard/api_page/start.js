/** Swagger UI, as it comes; where the frontend asks for keys, for a browser that has logged in. */

import { Login } from "/dashboard/login.js";

/** @type {any} */
const SwaggerUIBundle = /** @type {any} */ (window).SwaggerUIBundle;

const login = new Login(() => void show());

async function show() {
  const answer = await fetch("/openapi.json").catch(() => null);
  if (!answer?.ok) return login.ask();
  SwaggerUIBundle({
    spec: await answer.json(),
    dom_id: "#swagger-ui",
    deepLinking: true,
    presets: [SwaggerUIBundle.presets.apis],
    validatorUrl: null,
  });
}

void show();
