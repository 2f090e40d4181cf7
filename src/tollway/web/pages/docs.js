// Draws /openapi.json. Nothing is asked of any other host: no validator, no fonts, no telemetry.
window.addEventListener("DOMContentLoaded", () => {
  SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#swagger-ui",
    presets: [SwaggerUIBundle.presets.apis],
    layout: "BaseLayout",
    deepLinking: true,
    docExpansion: "none",
    validatorUrl: null,
    withCredentials: false,
  });
});
