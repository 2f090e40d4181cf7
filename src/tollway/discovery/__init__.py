"""Documents about listings for agents and crawlers, and the tools of MCP. A provider's text stays untrusted in all of them."""
