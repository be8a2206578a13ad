"""What ranks send each other, in fewer bytes; what that loses is kept and sent later."""
