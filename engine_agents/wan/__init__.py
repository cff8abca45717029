"""The WAN relay: shapes, measures and meters cross-site KV."""
