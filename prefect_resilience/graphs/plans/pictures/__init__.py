"""Plans as SVG and Mermaid."""
