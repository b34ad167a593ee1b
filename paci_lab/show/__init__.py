"""Charts and notebook views: they read traces and run directories, never the runtime."""
