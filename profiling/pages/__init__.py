"""The dashboard's pages: one `render()` each, and what they share. Only these and app.py know Streamlit."""
