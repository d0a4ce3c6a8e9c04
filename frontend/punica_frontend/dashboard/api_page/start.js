/** Swagger UI, as it comes. */

/** @type {any} */
const SwaggerUIBundle = /** @type {any} */ (window).SwaggerUIBundle;

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
  validatorUrl: null,
});
