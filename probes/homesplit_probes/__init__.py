"""What a box measures of itself: standard library only, better with torch or numpy."""
