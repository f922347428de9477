"""The border to ``dp_accounting``: events of releases, their compositions, a second opinion."""
