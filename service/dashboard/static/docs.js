/* Swagger UI over this service's own document. */
window.addEventListener("DOMContentLoaded", () => {
  SwaggerUIBundle({
    url: "/openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null, docExpansion: "list",
    presets: [SwaggerUIBundle.presets.apis], layout: "BaseLayout",
  });
});
