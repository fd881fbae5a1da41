"""What is computed to be shown, not measured: on this CPU, with torch and fa_core, in its own process."""
