"""Pure rules and formulas shared by gateway, twin and planner."""
