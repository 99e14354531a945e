"""From finished runs to tables, figures and sentences."""
