"""What pages may load and run."""

# Plotly and htmx set single style properties; scripts come from this server alone, and none stands in a page.
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "font-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
)
CONTENT_SECURITY_POLICY = "; ".join(_POLICY)
